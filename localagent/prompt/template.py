"""The chat template of a model: template variables in, text out, in which no content forges a control token.

Every string in the messages and tools is content, unless it is `Trusted` or a trusted piece of `Mixed`. Where
content spells a special token, its first character becomes a segment of its own with `special=False`.
Tokenized one by one, the segments never turn content into a control token, even for tokens that an engine
recognises when told not to. All other text stays in whole runs, so that ordinary token boundaries are where
the model saw them in training.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from localagent.errors import TemplateFailed
from localagent.prompt.segments import Mixed, Rendered, Segment
from localagent.prompt.shield import Shield, reveal

_PREFILL = "prefill"


class ChatTemplate:
    """A compiled chat template. Immutable once made, so any number of threads may render.

    `special_tokens` are the texts that content must not spell. Raises TemplateFailed on a missing or
    broken template.
    """

    def __init__(self, source: str | None, bos: str, eos: str, special_tokens: Collection[str]) -> None:
        if not source:
            raise TemplateFailed("the weights have no chat template: choose an instruction-tuned model")
        # Here, with jinja2: whoever asks a server renders nothing.
        from localagent.prompt.sandbox import compile_template

        self._template = compile_template(source)
        self._tokens = {"bos_token": bos, "eos_token": eos}
        self._shield = Shield(special_tokens, avoid=source)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        limit: float = math.inf,
        prefill: str | Mixed = "",
        **variables: Any,
    ) -> Rendered:
        """Render a conversation, and behind it `prefill`: the first words of the model's turn.

        `variables` reach the template under their names, shielded like content, as the prefill is.

        Raises TemplateFailed, in one line, for whatever the template refuses, and TooManyTokens when content
        spells more special tokens than `limit`: each is a token at least.
        """
        content = {"messages": list(messages), "tools": tools, "documents": None, **variables}
        values, shown = self._shield.hide(content | {_PREFILL: prefill}, limit)
        begun = values.pop(_PREFILL)
        values |= self._tokens | {"add_generation_prompt": add_generation_prompt}
        from localagent.prompt.sandbox import render_template

        text = render_template(self._template, values) + begun
        del values  # as large as the text
        return reveal(text, shown, limit)

    def guard(self, text: str) -> tuple[Segment, ...]:
        """One piece of content by itself, as `render` would cut it."""
        return reveal(*self._shield.hide(text)).segments if text else ()
