"""Calls that are a message of a role of their own, as GigaChat 3 writes them.

    Let me look.<|message_sep|>

    function call<|role_sep|>
    {"name": "f", "arguments": {"n": 3}}

The role's name is ordinary text, so it is a role only in front of its token.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...dialect import Context
from ...engine.source import Reading
from ...engine.tools import Tool
from .block import JsonBlock

CALL_ROLE, ROLE_END = "function call", "<|role_sep|>"
_BEGINNINGS = (f"\n\n{CALL_ROLE}", CALL_ROLE)


class CallRole:
    """Where such a message may begin: behind the line ends that the template puts between two, or at once."""

    first = "\nf"

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        """`tools` do not matter: the role alone makes it a call, of any tool."""

    def at(self, text: str, index: int) -> bool | None:
        """Whether the role and its token stand at `index`; None while more text may make it so."""
        wholes = [beginning + ROLE_END for beginning in _BEGINNINGS]
        if any(text.startswith(whole, index) for whole in wholes):
            return True
        return None if any(whole.startswith(text[index:]) for whole in wholes) else False

    def read(self, context: Context) -> Reading:
        """Read the message, or leave the position where it was: the token may be spelled in ordinary ones."""
        source = context.source
        start = source.offset
        yield from source.either(_BEGINNINGS)  # all of it is there, up to the token: nothing need be kept
        if (yield from source.marker((ROLE_END,))):
            context.emit.markup(source.offset)
            yield from JsonBlock(context).read()
        else:
            source.rewind(start)
