"""A model that continues a text instead of answering a conversation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, cast

from localagent.errors import Unsupported
from localagent.model import Model
from localagent.prompt.segments import Prompt
from localagent.server.models import ServedModel
from parsers import DIALECTS

TEXT = dataclasses.replace(DIALECTS["plain"], name="text", reasoning=None, ends=())
"""The dialect of a model that continues a text: no markers, so that all of its output is text."""


def continuing(model: ServedModel, text: str) -> ServedModel:
    """The same model for turns whose prompt is this text, whatever their messages are.

    Raises Unsupported for a host that takes no text.
    """
    if not isinstance(model, Model):  # replicas have it
        elsewhere: ServedModel = cast(Any, model).continuing(text)
        return elsewhere
    if not hasattr(model.host, "raw_prompt"):
        raise Unsupported(f"{model.name} takes conversations, and no text to continue")
    return Model(_Continuing(model.host, text), TEXT, model.sampling, model.name, model.prices)


class _Continuing:
    """A host that renders every conversation to one text."""

    def __init__(self, host: Any, text: str) -> None:
        self._host = host
        self._text = text

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        limit: float | None = None,
        **_: Any,
    ) -> Prompt:
        """The prompt that is this text."""
        prompt: Prompt = self._host.raw_prompt(self._text)
        return prompt
