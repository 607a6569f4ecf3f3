"""What the shell completes: names that this program knows, in place of files.

A completion that fails completes nothing: a shell has no place for an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator


def _quietly(names: Callable[[], Iterator[str]]) -> Callable[[str], list[str]]:
    """A completion of a word, or of the last one after a comma: of the names those that begin with it."""

    def complete(incomplete: str) -> list[str]:
        before, comma, word = incomplete.rpartition(",")
        try:
            fitting = [each for each in names() if each.startswith(word) and each.isprintable()]
        except Exception:
            return []
        return [f"{before}{comma}{each}" for each in fitting]

    return complete


@_quietly
def model_names() -> Iterator[str]:
    """Aliases, models of the catalogue, and repositories whose weights are here."""
    from localagent.cli.naming import names
    from localagent.store import WeightStore
    from localagent.store.repository import installed

    yield from names()
    yield from (spec.name for spec in installed(WeightStore()))


@_quietly
def session_names() -> Iterator[str]:
    """`last`, and the ids of all sessions."""
    from localagent.session import SessionStore

    yield "last"
    yield from (info.id for info in SessionStore().list())


@_quietly
def tool_names() -> Iterator[str]:
    """The tools that come with localagent."""
    from localagent.toolbox import SHIPPED

    yield from SHIPPED


@_quietly
def dialect_names() -> Iterator[str]:
    """The parser's dialects."""
    from localagent.parsers import DIALECTS

    yield from ("auto", *DIALECTS)


@_quietly
def client_names() -> Iterator[str]:
    """The programs that `connect` knows."""
    from localagent.connect.clients import CLIENTS

    yield from CLIENTS
