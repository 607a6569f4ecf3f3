"""What a server is asked: the body of a chat completion, and of a request to count its tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from localagent.control import Control
from localagent.messages import Message, ModelMessage
from localagent.prompt.rendering import ToolSchema
from localagent.prompt.request import build_request
from localagent.wire import anthropic, openai


def chat_body(
    model: str,
    messages: Sequence[ModelMessage],
    tools: Sequence[ToolSchema] | None,
    sampling: Mapping[str, Any],
    control: Control,
) -> dict[str, Any]:
    """The body of a streamed chat completion.

    Nothing is sent that was not asked for: what OpenAI's API lacks, such as `top_k`, some servers refuse.
    """
    body: dict[str, Any] = {
        "model": model,
        "messages": openai.to_wire(messages),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    body |= _sampled(sampling)
    if tools:
        body["tools"] = [_tool(tool, control.strict) for tool in tools]
        if control.named is not None:
            body["tool_choice"] = {"type": "function", "function": {"name": control.named}}
        elif control.choice != "auto":
            body["tool_choice"] = control.choice
        if not control.parallel_tool_calls:
            body["parallel_tool_calls"] = False
    if (form := control.response_format) is not None:
        body["response_format"] = form
        if form["type"] == "json_schema":  # the API wants a name
            body["response_format"] = {**form, "json_schema": {"name": "answer", **form["json_schema"]}}
    return body | _thinking(control)


def _sampled(sampling: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in sampling.items() if value is not None}
    if bias := dict(given.pop("logit_bias", None) or ()):
        given["logit_bias"] = bias
    if (top := given.pop("logprobs", None)) is not None:
        given |= {"logprobs": True, "top_logprobs": top}
    if (stop := given.get("stop")) is not None:
        given["stop"] = [stop] if isinstance(stop, str) else list(stop)
    return given


def _thinking(control: Control) -> dict[str, Any]:
    body: dict[str, Any] = {}
    if isinstance(control.thinking, bool):
        # The one switch that our server, llama-server, vLLM and SGLang all have.
        body["chat_template_kwargs"] = {"enable_thinking": control.thinking}
    elif control.thinking is not None:
        body["reasoning_effort"] = control.thinking
    if control.thinking_budget is not None:
        body["thinking_budget_tokens"] = control.thinking_budget
    return body


def _tool(tool: ToolSchema, strict: bool) -> dict[str, Any]:
    """The tool as the API has it, also one that is only the function."""
    function = {**tool.get("function", tool)}
    if strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def counting_body(
    model: str, messages: Sequence[Message], tools: Sequence[ToolSchema] | None
) -> dict[str, Any]:
    """The body of a request to count tokens, as Anthropic's API has it. Raises Unsupported."""
    request = build_request(messages, anthropic.TARGET)
    body: dict[str, Any] = {"model": model, **anthropic.to_wire(request.messages)}
    functions = [tool.get("function", tool) for tool in tools or ()]
    if functions:
        body["tools"] = [
            {
                "name": each["name"],
                "description": each.get("description") or "",
                "input_schema": each.get("parameters") or {"type": "object", "properties": {}},
            }
            for each in functions
        ]
    return body
