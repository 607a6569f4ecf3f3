"""What a chat template makes of tool calls, found out by rendering a small conversation with a known call.

Templates do not say what they drop or want: some show no calls at all, some only arguments given as JSON
text, some crash on a content of None and others show calls only with it, some want ids of nine characters
or of a form that names the function. So the same call is tried in several shapes; a shape that a template
refuses says nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from localagent.errors import TemplateFailed
from localagent.prompt.template import ChatTemplate

# Words that stand in no template, whose own examples must not be taken for the call.
NAME = "probe_name"
ARGUMENTS: Mapping[str, Any] = {"probe_key": "probe_value", "days": 3}
TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "The weather of the next days.",
        "parameters": {
            "type": "object",
            "properties": {"probe_key": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["probe_key", "days"],
        },
    },
}
QUESTION: dict[str, Any] = {"role": "user", "content": "probe_question"}
REASONING = ("reasoning_content", "thinking", "reasoning")
"""The names under which templates look for the reasoning of a turn."""
_CALL = (NAME, "probe_key", "probe_value")
_THOUGHT = dict.fromkeys(REASONING, "They ask for something.")
_IDS = ("call00000", f"functions.{NAME}:0")


def _calling(text_arguments: bool, content: str | None, call_id: str = _IDS[0]) -> dict[str, Any]:
    """The turn of the model with the call."""
    arguments = json.dumps(ARGUMENTS) if text_arguments else dict(ARGUMENTS)
    call = {"id": call_id, "type": "function", "function": {"name": NAME, "arguments": arguments}}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


@dataclass(frozen=True, slots=True)
class TemplateSupport:
    """What a chat template shows of a history."""

    tool_calls: bool = False
    tool_results: bool = True
    text_arguments: bool = False
    """Arguments appear only when they are given as JSON text."""
    none_content: bool = False
    """The calls of a turn without text appear only when its content is None."""
    text_with_calls: bool = True
    """The calls of a turn that also has text appear."""


def probe(render: Callable[[list[dict[str, Any]]], str]) -> TemplateSupport:
    """What a template shows of a call and its result; `render` may raise TemplateFailed."""
    result = {"role": "tool", "name": NAME, "tool_call_id": _IDS[0], "content": "probe_result"}

    def shows(turn: dict[str, Any], *texts: str) -> bool:
        try:
            rendered = render([QUESTION, turn, result, {"role": "assistant", "content": "done"}, QUESTION])
        except TemplateFailed:
            return False
        return all(text in rendered for text in texts)

    # The plainest shape first: None is printed as text by some templates, and JSON text is escaped by others.
    for text_arguments, content in product((False, True), ("", None)):
        turn = _calling(text_arguments, content)
        if shows(turn, *_CALL):
            return TemplateSupport(
                tool_calls=True,
                tool_results=shows(turn, "probe_result"),
                text_arguments=text_arguments,
                none_content=content is None,
                text_with_calls=shows(_calling(text_arguments, "probe_text"), "probe_text", *_CALL),
            )
    return TemplateSupport(
        tool_results=shows({"role": "assistant", "content": "no call"}, "probe_result"),
    )


@dataclass(frozen=True, slots=True)
class Written:
    """How a template writes a turn with the call: what it adds to the end of the prompt, and that end."""

    text: str
    prompt: str


def probe_calls(source: str) -> Iterator[Written]:
    """The turns with the call that the template of this source writes, each text once; none if it fails."""
    try:
        template = ChatTemplate(source, "", "", ())
    except TemplateFailed:
        return

    def render(turns: Sequence[Mapping[str, Any]], prompting: bool) -> str:
        """What comes after the question."""
        try:
            rendered = template.render(turns, [TOOL], add_generation_prompt=prompting).text
        except TemplateFailed:
            return ""
        return rendered.rpartition(QUESTION["content"])[2]

    prompt = render([QUESTION], True)
    seen = set()
    for thought, text_arguments, content, call_id in product((_THOUGHT, {}), (False, True), ("", None), _IDS):
        written = render([QUESTION, _calling(text_arguments, content, call_id) | thought], False)
        if NAME in written and written not in seen:
            seen.add(written)
            start = _in_common(prompt, written)
            yield Written(written[start:], prompt[:start])


def _in_common(prompt: str, written: str) -> int:
    """How far the end of the prompt and the written turn agree, to the last whole marker or line."""
    if written.startswith(prompt):
        return len(prompt)
    letters = enumerate(zip(prompt, written + "\0", strict=False))
    differ = next(place for place, (ours, theirs) in letters if ours != theirs)
    return max(prompt.rfind(end, 0, differ) for end in ">\n]") + 1
