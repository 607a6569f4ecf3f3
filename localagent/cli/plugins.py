"""`localagent bench`, which localagent-bench brings as an entry point of the group `localagent.commands`."""

from __future__ import annotations

from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING

from typer.core import TyperGroup

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from typer._click import Command


class Bench(TyperGroup):
    """`localagent bench`, which localagent-bench brings.

    Entry points are looked for only where one of its commands is wanted: to read those of all that is
    installed takes 40 ms, a third of the time of `localagent --help`.
    """

    def get_short_help_str(self, limit: int = 45) -> str:
        """Its line in the list of all commands."""
        if find_spec("localagent_bench") is None:
            return "Measure parsers, models and servers; needs localagent-bench."
        return super().get_short_help_str(limit)

    @property
    def commands(self) -> MutableMapping[str, Command]:
        """Raises LocalAgentError where localagent-bench is not installed."""
        return self._plugin.commands

    @commands.setter
    def commands(self, value: MutableMapping[str, Command]) -> None:
        """The constructor's, which has none to give."""

    @cached_property
    def _plugin(self) -> TyperGroup:
        from importlib.metadata import entry_points

        from typer.main import get_group

        from localagent.distribution import bench_install_command
        from localagent.errors import LocalAgentError

        try:
            return get_group(entry_points(group="localagent.commands")["bench"].load())
        except (KeyError, ImportError) as error:
            missing = isinstance(error, KeyError) or error.name in (
                "localagent_bench",
                "localagent_bench.cli",
            )
            problem = "is not installed" if missing else f"cannot be loaded ({error})"
            raise LocalAgentError(f"localagent-bench {problem}: {bench_install_command()}") from error
