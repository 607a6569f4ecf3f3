"""OpenAI's responses API without its memory: `POST /v1/responses`.

Nothing is kept, so a request brings its whole conversation. `response_writer` writes the answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from localagent.errors import ContextOverflow
from localagent.hosts.sampling import MOST_LOGPROBS
from localagent.server.exchange import (
    DEFAULT_LIMITS,
    STATELESS,
    Limits,
    Option,
    Refused,
    TurnRequest,
    Wire,
    goes_on,
    header_word,
    opened,
)
from localagent.server.wires.offer import Offer, read_format, read_tools, refuse_images
from localagent.server.wires.openai import SAMPLING, error_body, read_effort, read_sampling
from localagent.server.wires.response_writer import ResponseWriter
from localagent.wire import openai
from localagent.wire.payload import Fields

OPTIONS: Mapping[str, Option] = {
    **dict.fromkeys(SAMPLING, "taken"),
    **dict.fromkeys(("model", "input", "instructions", "stream", "max_output_tokens"), "taken"),
    **dict.fromkeys(("tools", "tool_choice", "parallel_tool_calls", "text", "reasoning"), "taken"),
    **dict.fromkeys(("include", "top_logprobs", "stream_tool_calls"), "taken"),
    **dict.fromkeys(("user", "metadata", "store", "service_tier", "safety_identifier"), "hint"),
    **dict.fromkeys(("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"), "hint"),
    **dict.fromkeys(("context_management", "background_options", "stream_options", "moderation"), "hint"),
    **dict.fromkeys(("access_programs", "image", "max_tool_calls", "truncation"), "hint"),
    "previous_response_id": STATELESS,
    "conversation": STATELESS,
    "background": Refused("the server is stateless: an answer lives as long as its connection", (False,)),
    "prompt": Refused("the server has no stored prompts: send instructions and input"),
}
"""Every field of the API. All else is a hint."""

LOGPROBS = "message.output_text.logprobs"
SEALED_REASONING = "reasoning.encrypted_content"
SUMMARIES = ("auto", "concise", "detailed", "none")
"""Whichever is asked for, the reasoning itself is what stands where its summary would."""


def _read(body: Any, limits: Limits = DEFAULT_LIMITS) -> TurnRequest:
    with opened(body, OPTIONS) as (fields, ignored):
        given = body.get("input")
        if isinstance(given, list) and len(given) > limits.messages:
            raise fields.wrong(f"{len(given):,} items, and the server takes {limits.messages:,}", "input")
        conversation, left_out = openai.read_input(given)
        ignored.extend(map(header_word, dict.fromkeys(left_out)))
        system = fields.maybe_text("instructions") or None
        if not conversation:
            raise fields.wrong("a conversation needs at least one message", "input")
        refuse_images(conversation, limits, "input")
        offer = read_tools(fields, limits)
        ignored.extend(offer.ignored)
        options = read_sampling(fields, "max_output_tokens")
        include, top = _include(fields, ignored), _top(fields)
        if top is not None or LOGPROBS in include:
            options["logprobs"] = top or 0
        text = fields.maybe_object("text") or Fields({}, "text")
        response_format = read_format(text, "format", limits)
        ignored.extend(map(text.path, text.rest()))
        reasoning = fields.maybe_object("reasoning") or Fields({}, "reasoning")
        effort = reasoning.maybe_text("effort")
        thinking = read_effort(Fields({"effort": effort}, "reasoning"), "effort")
        summary = reasoning.word("summary", SUMMARIES)
        ignored.extend(map(header_word, map(reasoning.path, reasoning.rest())))
        parallel = fields.flag("parallel_tool_calls", True)
        return TurnRequest(
            model=fields.maybe_text("model") or "",
            messages=conversation,
            continue_final_message=goes_on(conversation),
            system=system,
            tools=offer.tools,
            options=options,
            tool_choice=offer.choice,
            parallel_tool_calls=parallel,
            response_format=response_format,
            strict=offer.strict,
            thinking=thinking,
            thinking_field="reasoning.effort",
            stream=fields.flag("stream"),
            stream_tool_calls=fields.maybe_flag("stream_tool_calls"),
            ignored=tuple(ignored),
            details={
                "offer": offer,
                "logprobs": "logprobs" in options,
                "sealed": SEALED_REASONING in include,
                "summary": summary not in (None, "none"),
                "echo": {
                    "instructions": system,
                    "max_output_tokens": options.get("max_tokens"),
                    "parallel_tool_calls": parallel,
                    "reasoning": {"effort": effort, "summary": summary},
                    "temperature": options.get("temperature"),
                    "text": {"format": _flat(response_format)},
                    "tool_choice": _echo_choice(offer),
                    "tools": [_echo_tool(offer, tool) for tool in offer.tools],
                    "top_logprobs": top or 0,
                    "top_p": options.get("top_p"),
                },
            },
        )


RESPONSES_WIRE = Wire(
    "/v1/responses",
    _read,
    ResponseWriter,
    error_body,
    # Codex shortens its conversation when it reads this in a stream.
    fails_in_stream=lambda problem: isinstance(problem, ContextOverflow),
)


def _include(body: Fields, ignored: list[str]) -> list[str]:
    """What the answer is to hold beside the usual; what only hosted tools have is ignored."""
    include = body.take("include") or []
    if not isinstance(include, list) or not all(isinstance(each, str) for each in include):
        raise body.wrong("it must be a list of texts", "include")
    ignored.extend(header_word(each) for each in include if each not in (LOGPROBS, SEALED_REASONING))
    return include


def _top(body: Fields) -> int | None:
    top = body.count("top_logprobs")
    if top > MOST_LOGPROBS:
        raise body.wrong(f"it must be at most {MOST_LOGPROBS}", "top_logprobs")
    return top or None


def _flat(form: Mapping[str, Any] | None) -> dict[str, Any]:
    if form is None:
        return {"type": "text"}
    return {"type": form["type"], **form.get("json_schema", {})}


def _echo_choice(offer: Offer) -> Any:
    if isinstance(offer.choice, str):
        return offer.choice
    name = offer.choice["function"]["name"]
    return {"type": "custom" if name in offer.custom else "function", "name": name}


def _echo_tool(offer: Offer, tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool["function"]
    if function["name"] in offer.custom:
        return {"type": "custom", "name": function["name"], "description": function["description"]}
    return {"type": "function", **function, "strict": offer.strict}
