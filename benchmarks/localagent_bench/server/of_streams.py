"""Checks of streams: their chunks, their ends, and that they say what the whole answer says."""

from __future__ import annotations

from typing import Any

from localagent.wording import quoted
from localagent_bench.server.hearing import Heard
from localagent_bench.server.rules import (
    Check,
    Fails,
    NotSeen,
    Probe,
    choices_of,
    chunks_of,
    deltas_of,
    differs,
    said,
    streamed_text,
    text_of,
    whole,
)

_WITH_USAGE = {"stream_options": {"include_usage": True}}
_SILENCE = 15.0
"""Seconds without a sign of life after which clients give up."""


def a_stream_is_an_event_stream(probe: Probe) -> str:
    """A stream is text/event-stream."""
    heard = probe.stream()
    chunks_of(heard)
    if not heard.content_type.startswith("text/event-stream"):
        raise Fails(quoted(heard.content_type or "no content type"))
    return heard.content_type


def a_stream_ends_with_done(probe: Probe) -> str:
    """It ends with [DONE], and only there."""
    heard = probe.stream()
    count = len(chunks_of(heard))
    places = [at for at, (_, text) in enumerate(heard.data) if text.strip() == "[DONE]"]
    if places != [len(heard.data) - 1]:
        raise Fails("there is no [DONE]" if not places else "something comes after [DONE]")
    return f"{count} chunks"


def chunks_belong_together(probe: Probe) -> str:
    """Its chunks have one id, time, model and object."""
    chunks = chunks_of(probe.stream())
    for name, kind in (("id", str), ("created", int), ("model", str)):
        values = {str(chunk.get(name)) for chunk in chunks}
        if len(values) != 1 or type(chunks[0].get(name)) is not kind:
            raise Fails(f"{name} is {quoted(', '.join(sorted(values)), 80)}")
    objects = {chunk.get("object") for chunk in chunks}
    if objects != {"chat.completion.chunk"}:
        raise Fails(f"object is {quoted(', '.join(map(str, objects)))}")
    return quoted(chunks[0]["id"])


def the_role_comes_once_and_first(probe: Probe) -> str:
    """The role comes once, first, without text."""
    deltas = deltas_of(probe.stream())
    places = [at for at, delta in enumerate(deltas) if "role" in delta]
    if places != [0]:
        count = f"{len(places)} of {len(deltas)} chunks"
        raise Fails("there is no role" if not places else f"the role is in {count}")
    if deltas[0]["role"] != "assistant" or deltas[0].get("content"):
        raise Fails(f"the first delta is {quoted(str(deltas[0]))}")
    return "assistant, alone"


def the_end_is_a_chunk_of_its_own(probe: Probe) -> str:
    """finish_reason comes once, last, with an empty delta."""
    heard = probe.stream()
    ends = [each for each in choices_of(heard) if each.get("finish_reason") is not None]
    if len(ends) != 1:
        raise Fails(f"{len(ends)} chunks have a finish_reason")
    if ends[0] is not choices_of(heard)[-1]:
        raise Fails("chunks with a choice follow the one with finish_reason")
    if any(value for value in ends[0]["delta"].values()):
        raise Fails(f"beside finish_reason stands {quoted(str(ends[0]['delta']))}")
    return f"finish_reason {ends[0]['finish_reason']}"


def usage_comes_last_when_asked_for(probe: Probe) -> str:
    """Usage comes last, without choices, when asked for."""
    chunks = chunks_of(probe.stream(**_WITH_USAGE))
    places = [at for at, chunk in enumerate(chunks) if chunk.get("usage") is not None]
    if places != [len(chunks) - 1]:
        where = f"in chunks {', '.join(map(str, places[:5]))} of {len(chunks)}" if places else "nowhere"
        raise Fails(f"usage is {where}")
    if chunks[-1]["choices"]:
        raise Fails("the chunk with the usage has choices")
    return _summed(chunks[-1]["usage"])


def usage_is_not_sent_unasked(probe: Probe) -> str:
    """Usage is not sent unasked."""
    chunks = chunks_of(probe.stream())
    if any(chunk.get("usage") is not None for chunk in chunks) or not all(each["choices"] for each in chunks):
        raise Fails("there is a usage, or a chunk without choices")
    return "none"


def _summed(usage: Any) -> str:
    """The numbers of a usage. Raises Fails unless they are right."""
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    numbers = [usage.get(name) if isinstance(usage, dict) else None for name in names]
    if not all(type(each) is int and each >= 0 for each in numbers):
        raise Fails(f"usage is {quoted(str(usage), 100)}")
    prompt, written, total = (int(each or 0) for each in numbers)
    if prompt + written != total or not prompt:
        raise Fails(f"{prompt} + {written} is not {total}")
    return f"{prompt} + {written} tokens"


def usage_is_right(probe: Probe) -> str:
    """Usage is right, streamed and whole."""
    usage: Any = whole(probe.chat()).get("usage")
    told = _summed(usage)
    if usage["completion_tokens"] > 24:
        raise Fails(f"{usage['completion_tokens']} tokens, and 24 were the most")
    streamed = chunks_of(probe.stream(**_WITH_USAGE))[-1].get("usage")
    if isinstance(streamed, dict) and streamed.get("prompt_tokens") != usage["prompt_tokens"]:
        raise Fails(
            f"{streamed.get('prompt_tokens')} tokens of a prompt, streamed, and {usage['prompt_tokens']}"
        )
    return told


def a_stream_says_what_the_answer_says(probe: Probe) -> str:
    """A stream says what the whole answer says."""
    streamed, answered = streamed_text(probe.stream()), text_of(probe.chat())
    if streamed != answered:
        if text_of(probe.chat(again=1)) != answered:
            raise NotSeen("the likeliest tokens are not the same each time")
        differs("the stream and the answer differ", streamed, answered)
    if not answered:
        raise NotSeen("the model wrote nothing")
    return quoted(answered, 40)


def a_stream_is_utf8(probe: Probe) -> str:
    """Characters are whole."""
    asked = said("Write exactly this: \u00fcber \u2014 na\u00efve \U0001f308 \u4f60\u597d")
    heard = probe.stream(messages=asked)
    text = streamed_text(heard)
    try:
        heard.body.decode()
    except UnicodeDecodeError as error:
        raise Fails(f"the body is no UTF-8: {error.reason}") from error
    if "\ufffd" in text:
        if "\ufffd" in text_of(probe.chat(messages=asked)):
            raise NotSeen("the model writes bytes that are no text")
        raise Fails("a character was cut where two chunks meet")
    return "UTF-8" if not text.isascii() else "UTF-8, of plain ASCII"


def reasoning_has_one_name(probe: Probe) -> str:
    """Reasoning has one name, and is not in the content."""
    deltas = deltas_of(probe.stream())
    names = {name for delta in deltas for name in ("reasoning_content", "reasoning") if delta.get(name)}
    if len(names) > 1:
        raise Fails("the same reasoning as reasoning and reasoning_content: clients show it twice")
    if any(delta.get("content") and not names.isdisjoint(delta) for delta in deltas):
        raise Fails("a chunk holds both reasoning and content")
    if "<think>" in streamed_text(probe.stream()):
        raise Fails("the reasoning is in the content, with its marker")
    if not names:
        raise NotSeen("the model did not reason")
    return names.pop()


def a_long_prompt_does_not_look_dead(probe: Probe) -> str:
    """A long prompt does not look like a dead server."""
    words = min(6000, (probe.target.context or 8000) // 3)
    heard: Heard = probe.stream(messages=said("red green blue " * (words // 3)), max_tokens=2)
    if 400 <= heard.status < 500:
        raise NotSeen(f"the prompt is too long: {heard.told()}")
    chunks_of(heard)
    waits = [later - sooner for sooner, later in zip([0.0, *heard.times], heard.times, strict=False)]
    if max(waits) > _SILENCE:
        raise Fails(f"{max(waits):.0f} s without a byte")
    first = heard.data[0][0]
    if first < _SILENCE and not any(line.startswith(b":") for line in heard.lines):
        raise NotSeen(f"it took only {heard.times[-1]:.1f} s")
    return f"at most {max(waits):.1f} s without a byte"


CHECKS = (
    Check("stream", "a stream", a_stream_is_an_event_stream),
    Check("stream", "the same", a_stream_ends_with_done),
    Check("stream", "the same", chunks_belong_together),
    Check("stream", "the same", the_role_comes_once_and_first),
    Check("stream", "the same", the_end_is_a_chunk_of_its_own),
    Check("stream", "include_usage: true", usage_comes_last_when_asked_for),
    Check("stream", "a stream", usage_is_not_sent_unasked),
    Check("stream", "both", usage_is_right),
    Check("stream", "both, at temperature 0", a_stream_says_what_the_answer_says),
    Check("stream", "emoji and CJK", a_stream_is_utf8),
    Check("stream", "a stream", reasoning_has_one_name),
    Check("stream", "a third of the context", a_long_prompt_does_not_look_dead),
)  # fmt: skip
