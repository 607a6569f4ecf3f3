"""A model that continues a text, or fills a gap in one, instead of answering a conversation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, cast

from localagent.errors import Unsupported
from localagent.model import Model
from localagent.parsers import DIALECTS
from localagent.prompt.segments import Gap, Prompt, Raw
from localagent.server.models import ServedModel

TEXT = dataclasses.replace(DIALECTS["plain"], name="text", reasoning=None, ends=())
"""The dialect of a model that continues a text: no markers, so that all of its output is text."""


def continuing(model: ServedModel, raw: Raw) -> ServedModel:
    """The same model for turns whose prompt is this one, whatever their messages are.

    Raises Unsupported for a host that takes no text.
    """
    if not isinstance(model, Model):  # replicas have it
        elsewhere: ServedModel = cast(Any, model).continuing(raw)
        return elsewhere
    if not model.host.takes_text:
        raise Unsupported(f"{model.name} takes conversations, and no text to continue")
    return Model(_Continuing(model.host, raw), TEXT, model.sampling, model.name, model.prices)


def check(model: ServedModel, raws: Sequence[Raw]) -> None:
    """Refuse a prompt that no turn takes, before the turns of the others have begun. Not to be called on an
    event loop.

    Raises what its turn would raise.
    """
    if isinstance(model, Model) and model.host.takes_text:  # replicas check it themselves
        for raw in raws:
            model.host.check(model.host.raw_prompt(raw))


def spelled(model: ServedModel, raws: Sequence[Raw]) -> list[str]:
    """The texts of prompts. Not to be called on an event loop.

    Raises Unsupported for ids where the bytes of tokens are not known, UsageError for an unknown id.
    """
    return [_spelled(model, raw) for raw in raws]


def _spelled(model: ServedModel, raw: Raw) -> str:
    if isinstance(raw, str):
        return raw
    if isinstance(raw, Gap):
        return raw.before
    return model.host.detokenize(raw).decode("utf-8", "replace")


class _Continuing:
    """A host that renders every conversation to one prompt."""

    def __init__(self, host: Any, raw: Raw) -> None:
        self._host = host
        self._raw = raw

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
        """The prompt."""
        prompt: Prompt = self._host.raw_prompt(self._raw)
        return prompt
