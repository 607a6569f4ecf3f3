"""Conversations to ids, with a model's chat template and vocabulary. Engines and remote servers share it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from localagent.errors import ContextOverflow
from localagent.hosts.counting import tokenize_within
from localagent.hosts.engine import Vocabulary
from localagent.hosts.prefix import Transcripts
from localagent.hosts.prefix.transcripts import recorder, spell, unspell
from localagent.hosts.protocol import Token
from localagent.prompt.segments import Prompt, Segment, Spelling, TooManyTokens
from localagent.prompt.template import ChatTemplate


class Prompting:
    """Renders prompts; text that the model wrote keeps the tokens that it was written with."""

    def __init__(
        self,
        source: str | None,
        vocabulary: Vocabulary,
        context: int,
        transcripts: Transcripts | None,
        reading: Callable[[], AbstractContextManager[object]],
    ) -> None:
        """`source`: the chat template's jinja source. `transcripts`: None where nothing is to be remembered.

        `reading`: entered around tokenization, in whatever thread, which takes seconds for a long prompt.
        """
        self.source = source
        self.transcripts = transcripts
        self._vocabulary = vocabulary
        self._context = context
        self._reading = reading
        self._template: ChatTemplate | None = None

    @property
    def template(self) -> ChatTemplate:
        """The chat template, compiled at the first use. Raises TemplateFailed."""
        if self._template is None:
            vocabulary = self._vocabulary
            special = frozenset(vocabulary.special.values())
            self._template = ChatTemplate(self.source, vocabulary.bos, vocabulary.eos, special)
        return self._template

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        limit: float | None,
        variables: Mapping[str, Any],
    ) -> Prompt:
        """See `rendering.Renderer`. Raises TemplateFailed, ContextOverflow."""
        limit = self._context if limit is None else limit
        known: tuple[int, ...] = ()
        try:
            rendered = self.template.render(messages, tools, limit=limit, **variables)
            text = spell(rendered.segments)
            length, known = self.transcripts.longest(text) if self.transcripts else (0, ())
            rest = unspell(text, length) if length else rendered.segments
            with self._reading():
                ids = tokenize_within(self._vocabulary, rest, limit - len(known), length > 0)
        except TooManyTokens as many:
            raise ContextOverflow(len(known) + many.least - 1, self._context, exact=False) from None
        ids = known + ids
        return Prompt(ids, rendered.text, key=Spelling(text, ids), tail=rendered.tail)

    def raw(self, text: str) -> Prompt:
        """The prompt that is this text, in which control tokens are recognised. Raises ContextOverflow."""
        try:
            with self._reading():
                ids = tokenize_within(self._vocabulary, (Segment(text, True),), self._context)
        except TooManyTokens as many:
            raise ContextOverflow(many.least - 1, self._context, exact=False) from None
        return Prompt(ids, text)

    def tokenize(self, text: str, special: bool) -> tuple[int, ...]:
        """The ids of `text` with nothing added; control tokens are recognised only when `special`."""
        with self._reading():
            return self._vocabulary.tokenize(text, special)

    def recorder(self, prompt: Prompt) -> Callable[[Sequence[Token]], None]:
        """A function that remembers what the model wrote after this prompt."""
        return recorder(prompt, self._template, self.transcripts, self._vocabulary.piece)
