"""What a newcomer sees: `localagent` alone, and a first chat while no model is here."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

import typer

from localagent.cli.terminal import flat, on_terminal, say, show_line, table_width
from localagent.errors import UsageError
from localagent.wording import size_text

if TYPE_CHECKING:
    from localagent.catalog import ModelSpec
    from localagent.cli.fitting import Need
    from localagent.cli.options import ModelOptions
    from localagent.hosts.backends import BackendName
    from localagent.store import WeightStore


def help_alone(context: typer.Context) -> None:
    """Show the help of a group of commands that is called without one."""
    if context.invoked_subcommand is None:
        show_line(context.get_help())


def greet(context: typer.Context) -> None:
    """What to do next: on a terminal with the models that are here and what to pull, elsewhere the help."""
    if context.invoked_subcommand is not None:
        return
    if not on_terminal():
        show_line(context.get_help())
        return
    from localagent.catalog import load_catalog
    from localagent.cli.fitting import need, proposals
    from localagent.cli.naming import known_default
    from localagent.distribution import version
    from localagent.hosts.memory import available_memory
    from localagent.store import WeightStore

    catalog, store, default = load_catalog(), WeightStore(), known_default(say)
    here = [(spec, need(spec, backend, store)) for spec, backend in present(store)]
    _wrapped(f"localagent {version() or ''}: language models on this machine, with tool calls that work.")
    show_line("\nOn this machine:")
    for spec, takes in here:
        _tell(spec.name + (" *" if spec.name == default else ""), _costs(takes))
    names = {spec.name for spec, _ in here}
    first = catalog.default
    fetched = f" ({size_text(need(first, first.preferred_backend(), store).size)}, fetched first)"
    show_line("\nStart:")
    talk = f"talk with {flat(default)}" if default else "talk"
    _tell("localagent chat", [talk + (fetched if default == first.name and default not in names else "")])
    _tell('localagent run "Name three colours."', ["ask once"])
    better = [(spec, takes) for spec, takes in proposals(catalog, store, 2) if spec.name not in names]
    if better:
        show_line("")
        _wrapped(f"More able, and fit into the memory that is free ({size_text(available_memory())}):")
        for spec, takes in better:
            _tell(f"localagent models pull {spec.name}", [*_costs(takes), spec.licence.name])
    show_line("")
    _wrapped("localagent --help shows all commands, and localagent models list more models.")


def offer(options: ModelOptions) -> ModelOptions:
    """The options, with the model that a person chooses for a first chat, before anything was pulled.

    Nobody is asked who named a model or a server, has chosen a default, has weights already or cannot answer.
    """
    from localagent.cli.naming import VARIABLE, Preferences

    named = options.model or options.server or os.environ.get(VARIABLE) or Preferences.read().default
    if named or options.backend or not (on_terminal() and sys.stderr.isatty()):
        return options
    from localagent.catalog import PathSource, load_catalog
    from localagent.cli.fitting import need, proposals
    from localagent.store import WeightStore

    catalog, store = load_catalog(), WeightStore()
    if any(not isinstance(spec.sources[backend], PathSource) for spec, backend in present(store)):
        return options
    default = catalog.default
    offered = [(default, need(default, default.preferred_backend(), store))]
    offered += [each for each in proposals(catalog, store, 3) if each[0] is not default]
    if len(offered) == 1:
        return options
    say("No model is on this machine yet. Which one shall be fetched?")
    for number, (spec, takes) in enumerate(offered, 1):
        _tell(f"{number}  {spec.name}", [*_costs(takes), spec.licence.name, spec.description], aside=True)
    return dataclasses.replace(options, model=offered[_number(len(offered)) - 1][0].name)


def present(store: WeightStore) -> Iterable[tuple[ModelSpec, BackendName]]:
    """The models whose weights are here, each with its first backend: the catalogue's, then repositories'."""
    from localagent.catalog import load_catalog
    from localagent.store.repository import installed

    for spec in (*load_catalog(), *installed(store)):
        backend = next((each for each in spec.backends if store.find(spec, each)), None)
        if backend is not None:
            yield spec, backend


def choose(question: str, names: Sequence[str]) -> str | None:
    """Let a person choose one of several names, by its number. Raises UsageError where the input ends."""
    say(f"{question}:")
    for number, name in enumerate(names, 1):
        say(f"  {number}  {name}")
    return names[_number(len(names)) - 1]


def _number(most: int) -> int:
    """Ask for a number from 1 to `most`; 1 is what Enter gives. Raises UsageError."""
    while True:
        sys.stderr.write(f"Number, or Enter for 1 [1-{most}]: ")
        sys.stderr.flush()
        answer = sys.stdin.readline()
        if not answer:
            sys.stderr.write("\n")
            raise UsageError("no model was chosen: name one with --model")
        text = answer.strip() or "1"
        if text.isdecimal() and 1 <= int(text) <= most:
            return int(text)


def _costs(takes: Need) -> list[str]:
    """What the model takes, in words."""
    return [takes.told(takes.size), f"{takes.told(takes.memory)} of memory" if takes.memory else ""]


def _wrapped(text: str) -> None:
    show_line("\n".join(wrap(text, table_width())))


def _tell(name: str, details: list[str], *, aside: bool = False) -> None:
    """A line, or where the terminal is narrow a name and below it what belongs to it; `aside`: on stderr."""
    text = ", ".join(filter(None, details))
    wide = len(name) <= 38 and table_width() >= 42 + len(text)
    lines = [f"  {name:<38}  {text}"]
    if not wide:
        lines = [f"  {name}", *wrap(text, table_width(), initial_indent=" " * 6, subsequent_indent=" " * 6)]
    for line in lines:
        (say if aside else show_line)(line)
