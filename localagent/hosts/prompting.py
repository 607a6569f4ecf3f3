"""Conversations to ids, with a model's chat template and vocabulary. Engines and remote servers share it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from localagent.errors import ContextOverflow, Unsupported, UsageError
from localagent.hosts.counting import tokenize_within
from localagent.hosts.engine import Vocabulary
from localagent.hosts.prefix import Transcripts
from localagent.hosts.prefix.transcripts import recorder, spell, unspell
from localagent.hosts.protocol import Token
from localagent.prompt.segments import Gap, Prompt, Raw, Segment, Spelling, TooManyTokens
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

    def raw(self, raw: Raw) -> Prompt:
        """A prompt without the chat template. Raises ContextOverflow, and Unsupported for a gap where the
        vocabulary has no tokens for it.
        """
        if isinstance(raw, tuple):
            return Prompt(raw, "")
        try:
            with self._reading():
                if isinstance(raw, Gap):
                    return Prompt(self._around(raw), raw.before)
                return Prompt(tokenize_within(self._vocabulary, (Segment(raw, True),), self._context), raw)
        except TooManyTokens as many:
            raise ContextOverflow(many.least - 1, self._context, exact=False) from None

    def check(self, prompt: Prompt) -> None:
        """Raise UsageError for a prompt that is empty or has unknown ids, ContextOverflow for a long one."""
        ids, size = prompt.ids, self._vocabulary.size
        if not ids:
            raise UsageError("the prompt is empty: it needs at least one token")
        if len(ids) > self._context:
            raise ContextOverflow(len(ids), self._context)
        if not 0 <= min(ids) <= max(ids) < size:
            raise UsageError(f"the prompt holds an id outside the vocabulary of {size:,}")

    def _around(self, gap: Gap) -> tuple[int, ...]:
        """The ids of a gap: other files, what is before it, what is after it, and then it is filled."""
        if (marks := self._vocabulary.gap) is None:
            raise Unsupported("this model has no tokens for filling a gap: send a prompt without a suffix")
        # An empty prompt has what the model wants at the beginning of each.
        ids = [*tokenize_within(self._vocabulary, (Segment("", True),), self._context)]

        def add(mark: int | None, text: str) -> None:
            if mark is not None:
                ids.append(mark)
            left = self._context - len(ids)
            try:
                ids.extend(tokenize_within(self._vocabulary, (Segment(text, False),), left, True))
            except TooManyTokens as many:
                raise TooManyTokens(len(ids) + many.least) from None

        for name, text in gap.others:
            add(marks.file, f"{name}\n{text}\n")
        add(marks.before, gap.before)
        add(marks.after, gap.after)
        return (*ids, marks.fill)

    def tokenize(self, text: str, special: bool) -> tuple[int, ...]:
        """The ids of `text` with nothing added; control tokens are recognised only when `special`."""
        with self._reading():
            return self._vocabulary.tokenize(text, special)

    def recorder(self, prompt: Prompt) -> Callable[[Sequence[Token]], None]:
        """A function that remembers what the model wrote after this prompt."""
        return recorder(prompt, self._template, self.transcripts, self._vocabulary.piece)


class PromptingHost:
    """What a host has of `protocol.Host` by making its prompts in this process, with a `Prompting`."""

    _prompting: Prompting

    @property
    def template_source(self) -> str | None:
        """The chat template's jinja source."""
        return self._prompting.source

    @property
    def template(self) -> ChatTemplate:
        """The model's chat template, compiled at the first use. Raises TemplateFailed."""
        return self._prompting.template

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        limit: float | None = None,
        **variables: Any,
    ) -> Prompt:
        """Render with the model's chat template and tokenize; text that the model wrote keeps its tokens.

        `limit`, `variables`: see `Renderer` and `ChatTemplate`. Raises TemplateFailed, ContextOverflow.
        """
        return self._prompting.render(messages, tools, limit, variables)

    def write(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The text of a prompt, which needs no engine. Raises TemplateFailed."""
        return self.template.render(messages, tools, **variables).text

    def raw_prompt(self, raw: Raw) -> Prompt:
        """A prompt without the chat template. Raises ContextOverflow, and Unsupported for a gap where the
        model has no tokens for it.
        """
        return self._prompting.raw(raw)

    def check(self, prompt: Prompt) -> None:
        """Raise what `generate` would raise for this prompt: UsageError, ContextOverflow."""
        self._prompting.check(prompt)

    def tokenize(self, text: str, special: bool) -> tuple[int, ...]:
        """The ids of `text` with nothing added; control tokens are recognised only when `special`."""
        return self._prompting.tokenize(text, special)
