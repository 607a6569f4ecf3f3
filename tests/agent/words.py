"""A host whose tokens are words: it plays recordings, counts what it renders, and refuses what is too long."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from localagent.errors import ContextOverflow
from localagent.hosts.protocol import Prompt, Token
from localagent.hosts.replay import ReplayGeneration, ReplayHost
from localagent.hosts.sampling import Sampling
from localagent.model import Model
from parsers import DIALECTS

LFM2 = DIALECTS["lfm2"]
_MARKERS = re.compile("(" + "|".join(map(re.escape, LFM2.markers)) + ")")


class WordHost(ReplayHost):
    """Plays its outputs word by word, one a turn, and the last one again."""

    def __init__(self, outputs: Sequence[str], context: int) -> None:
        super().__init__([_words(output) for output in outputs], LFM2.markers, context=context)
        self.asked: list[str] = []
        """The prompts that it was to answer."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        limit: float | None = None,
    ) -> Prompt:
        """A line for the tools and one for each message, whose role is a word."""
        self.rendered.append(messages)
        offered = [f"tools: {' '.join(tool['function']['name'] for tool in tools)}"] if tools else []
        text = "\n".join([*offered, *(f"{each['role']}: {each['content']}" for each in messages)])
        return Prompt(tuple(range(len(text.split()))), text)

    def generate(
        self, prompt: Prompt, sampling: Sampling, cancel: Any = None, constraint: Any = None
    ) -> ReplayGeneration:
        """The next output, as other hosts would: not for a prompt that is too long."""
        if len(prompt.ids) > self.context:
            raise ContextOverflow(len(prompt.ids), self.context)
        self.asked.append(prompt.text)
        return super().generate(prompt, sampling, cancel)


def _words(output: str) -> list[Token]:
    tokens: list[Token] = []
    for piece in filter(None, _MARKERS.split(output)):
        special = piece in LFM2.markers
        texts = [piece] if special else re.findall(r"\S+\s*|\s+", piece)
        tokens += (Token(len(tokens), text, special) for text in texts)
    return [*tokens, Token(len(tokens), "<|im_end|>", True, end=True)]


def wordy(*outputs: str, context: int = 200) -> Model:
    """A model that writes these outputs."""
    return Model(WordHost(outputs, context), LFM2)


def words(number: int, word: str = "word") -> str:
    """A text of so many tokens."""
    return " ".join(f"{word}{at}" for at in range(number))
