"""Chat templates: messages in, text out, with user content unable to forge control tokens.

Knows jinja2 and the conventions of Hugging Face chat templates. Knows nothing of engines or token ids:
the caller names the vocabulary's special tokens and tokenizes what comes back.

Contract: every string inside the messages and tools is content. Where content holds the text of a special
token, `Rendered.segments` cuts its first character out as a segment of its own with `special=False`. All
other text stays in whole runs with `special=True`, so that ordinary token boundaries are as the model was
trained. Tokenizing each segment by itself therefore never turns content into a control token, even for tokens
that an engine recognises when asked not to. Text that the program itself wrote in the model's native notation
is passed as `Trusted`, or as a piece of `Mixed`, and is not cut.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from localagent.errors import TemplateFailed
from localagent.sandbox import compile_template, render_template

_REASONING_OPENERS = ("<think>", "[THINK]", "<seed:think>", "<|START_THINKING|>")
_SURROGATE = re.compile("[\ud800-\udfff]")
_MAX_DEPTH = 200


class Trusted(str):
    """Text whose control tokens are meant: written by the program, such as a native tool-call block.

    Never wrap what a user, a tool or a network peer wrote.
    """

    __slots__ = ()


class Mixed(tuple[str, ...]):
    """One string in pieces, of which some are `Trusted` and the others are content."""

    __slots__ = ()

    def __str__(self) -> str:
        return "".join(self)


class Segment(NamedTuple):
    """A run of prompt text. `special` says whether control tokens in it are to be recognised."""

    text: str
    special: bool


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered conversation. The segments join to `text`."""

    segments: tuple[Segment, ...]
    text: str

    @property
    def inside(self) -> Literal["reasoning"] | None:
        """ "reasoning" when the template itself ends by opening a reasoning block."""
        if not self.segments or not self.segments[-1].special:
            return None
        return "reasoning" if self.segments[-1].text.rstrip().endswith(_REASONING_OPENERS) else None


class ChatTemplate:
    """A compiled chat template. Immutable once made, so any number of threads may render.

    `special_tokens` are the texts that content must not spell. Raises TemplateFailed on a missing or
    broken template.
    """

    def __init__(self, source: str | None, bos: str, eos: str, special_tokens: Collection[str]) -> None:
        if not source:
            raise TemplateFailed("the weights hold no chat template: choose an instruction-tuned model")
        self._template = compile_template(source)
        self._tokens = {"bos_token": bos, "eos_token": eos}
        self._shield = Shield(special_tokens)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> Rendered:
        """Render a conversation. `variables` reach the template as they are named, shielded like content.

        Raises TemplateFailed, in one line, for whatever the template refuses.
        """
        content = {"messages": list(messages), "tools": tools, "documents": None, **variables}
        shielded = self._shield.guard(content)
        shielded |= self._tokens | {"add_generation_prompt": add_generation_prompt}
        return self._shield.reveal(render_template(self._template, shielded))


class Shield:
    """Replaces what content must not spell by placeholders, and finds those again after rendering.

    A placeholder is one lone surrogate. Content cannot hold one, because its own are replaced by U+FFFD, and
    a template cannot cut one in two. Only the first character of a special token is replaced, so a dozen
    placeholders serve any vocabulary.
    """

    def __init__(self, special_tokens: Collection[str]) -> None:
        tokens = {token for token in special_tokens if token}
        initials = sorted({token[0] for token in tokens})
        if len(initials) > 0x800:
            raise TemplateFailed("the vocabulary's special tokens begin with more than 2,048 characters")
        self._hidden = {initial: chr(0xD800 + i) for i, initial in enumerate(initials)}
        self._shown = {placeholder: initial for initial, placeholder in self._hidden.items()}
        self._initial = re.compile("[" + re.escape("".join(initials)) + "]") if initials else None
        self._tokens = tokens
        self._lengths = sorted({len(token) for token in tokens})
        # A template may write one piece of content directly before another: a token spelled half here and
        # half there begins with a prefix at the end of the first.
        self._prefixes = {token[:n] for token in tokens for n in range(1, len(token))}
        self._longest = self._lengths[-1] if tokens else 0

    def guard(self, value: Any, depth: int = 0) -> Any:
        """A copy of JSON-shaped `value` with all of its strings, keys included, made safe."""
        if depth > _MAX_DEPTH:
            raise TemplateFailed(f"messages and tools may be nested {_MAX_DEPTH} deep, not deeper")
        match value:
            case Trusted():
                return _SURROGATE.sub("\ufffd", value)
            case str():
                return self.guard_text(value)
            case Mixed():
                return "".join(self.guard(piece, depth + 1) for piece in value)
            case None | bool() | int() | float():
                return value
            case Mapping():
                return {self.guard(k, depth + 1): self.guard(v, depth + 1) for k, v in value.items()}
            case list() | tuple():
                return [self.guard(item, depth + 1) for item in value]
        raise TemplateFailed(f"messages and tools hold JSON values, not {type(value).__name__}")

    def guard_text(self, text: str) -> str:
        """`text` with the first character of everything that begins a special token replaced."""
        text = _SURROGATE.sub("\ufffd", text)
        if self._initial is None:
            return text
        trimmed = len(text.rstrip())
        tail = trimmed - self._longest
        pieces: list[str] = []
        done = 0
        for found in self._initial.finditer(text):
            at = found.start()
            edge = at > tail and (text[at:] in self._prefixes or text[at:trimmed] in self._prefixes)
            if edge or any(text[at : at + n] in self._tokens for n in self._lengths):
                pieces += text[done:at], self._hidden[text[at]]
                done = at + 1
        return "".join(pieces) + text[done:] if pieces else text

    def reveal(self, rendered: str) -> Rendered:
        """Cut a rendered text at its placeholders and put back the characters they stand for."""
        segments: list[Segment] = []
        done = 0
        for found in _SURROGATE.finditer(rendered):
            if found.start() > done:
                segments.append(Segment(rendered[done : found.start()], special=True))
            # The template can spell surrogates that are none of ours; tokenizers refuse them.
            segments.append(Segment(self._shown.get(found[0], "\ufffd"), special=False))
            done = found.end()
        if done < len(rendered):
            segments.append(Segment(rendered[done:], special=True))
        return Rendered(tuple(segments), "".join(segment.text for segment in segments))
