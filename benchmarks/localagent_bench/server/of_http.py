"""Checks of HTTP, of the list of models, and of how errors are told."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlsplit

from localagent.wording import listed, quoted
from localagent_bench.server.hearing import Caller, Heard
from localagent_bench.server.rules import (
    CHAT,
    MODELS,
    Check,
    Fails,
    NotOffered,
    NotSeen,
    Probe,
    encoded,
    offered,
    refusal,
    said,
    whole,
)

_LONG = 300_000
"""Words of a prompt that is longer than the context of most models."""


def _names(heard: Heard) -> list[str]:
    listing = whole(heard)
    data = listing.get("data")
    if listing.get("object") != "list" or not isinstance(data, list):
        raise Fails('no object "list" with its data')
    if not all(isinstance(each, Mapping) and isinstance(each.get("id"), str) for each in data):
        raise Fails("a model without an id")
    return [each["id"] for each in data]


def models_are_listed(probe: Probe) -> str:
    """The models are listed."""
    names = _names(probe.get(MODELS))
    if not names:
        raise Fails("the list is empty")
    return listed(names, 3)


def a_model_is_described(probe: Probe) -> str:
    """A model is described by its id."""
    names = _names(probe.get(MODELS))
    if not names:
        raise NotSeen("the list is empty")
    heard = probe.get(f"{MODELS}/{quote(names[0], safe='')}")
    if heard.status in (404, 405, 501):
        raise NotOffered(heard.told())
    if whole(heard).get("id") != names[0]:
        raise Fails(f"the id is {quoted(str(whole(heard).get('id')))}, not {quoted(names[0])}")
    return quoted(names[0])


def a_chunked_body_is_read(probe: Probe) -> str:
    """A chunked body is read."""
    body = _small(probe)
    whole(probe.caller.hear("POST", CHAT, iter((body[:10], body[10:30], body[30:]))))
    return "answered"


def _small(probe: Probe) -> bytes:
    return encoded({"model": probe.target.model, "messages": said("Hello."), "max_tokens": 1})


def a_connection_serves_two_requests(probe: Probe) -> str:
    """A connection serves more than one request."""
    server = probe.target.server
    parts = urlsplit(server.url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=probe.caller.limit)
    path = f"{parts.path}{CHAT}"
    seen = []
    try:
        for _ in range(2):
            connection.request("POST", path, _small(probe), server.headers(True))
            answer = connection.getresponse()
            answer.read(1 << 20)  # what is longer leaves the connection in use, which is told below
            seen.append(answer.status)
            if connection.sock is None:  # the server has said that it closes it
                break
    except (OSError, http.client.HTTPException) as error:
        raise Fails(f"after {len(seen)} answers: {str(error) or type(error).__name__}") from error
    finally:
        connection.close()
    if seen != [200, 200]:
        raise Fails("closed after the first answer" if seen == [200] else f"answers {seen}")
    return "both answered"


def a_client_may_leave(probe: Probe) -> str:
    """A client may leave in the midst of a stream."""
    long = {"messages": said("Write a long story."), "max_tokens": 2000, "stream": True}
    body = encoded({"model": probe.target.model, **long})
    heard = probe.caller.hear("POST", CHAT, body, enough=lambda line: line.startswith(b"data: {"))
    if heard.problem or heard.status != 200:
        raise Fails(heard.told())
    after = probe.caller.hear("POST", CHAT, _small(probe))
    if after.problem or after.status != 200:
        raise Fails(f"the next one gets {after.told()}")
    return f"the next one was answered after {after.times[-1]:.2f} s"


# -- errors -----------------------------------------------------------------------------------------------


def an_unknown_path_is_an_error(probe: Probe) -> str:
    """An unknown path is 404, as an error object."""
    return refusal(probe.get("/v1/no-such-endpoint"), (404,))


def a_wrong_method_is_an_error(probe: Probe) -> str:
    """A wrong method is 405 or 404, as an error object."""
    return refusal(probe.get(CHAT), (404, 405))


def what_is_no_json_is_an_error(probe: Probe) -> str:
    """A body that is no JSON is an error object."""
    return refusal(probe.post(b'{"messages": ['))


def what_is_no_object_is_an_error(probe: Probe) -> str:
    """A body that is no object is an error object."""
    return refusal(probe.post(b"[1, 2]"))


def missing_messages_are_an_error(probe: Probe) -> str:
    """Missing messages are an error."""
    return refusal(probe.post(encoded({"model": probe.target.model, "max_tokens": 1})))


def an_unknown_role_is_an_error(probe: Probe) -> str:
    """An unknown role is an error."""
    return refusal(probe.chat(messages=[{"role": "wizard", "content": "Hello."}], max_tokens=1))


def a_wrong_type_is_an_error(probe: Probe) -> str:
    """A value of a wrong type is an error."""
    return refusal(probe.chat(temperature="hot", max_tokens=1))


def an_error_before_a_stream_has_a_status(probe: Probe) -> str:
    """An error before a stream begins has a status."""
    return refusal(probe.stream(temperature="hot", max_tokens=1))


def an_unknown_model_is_an_error(probe: Probe) -> str:
    """An unknown model is an error where several are served."""
    heard = probe.chat(model="no-such-model", max_tokens=1)
    if heard.status == 200:
        names = _names(probe.get(MODELS))
        if len(names) > 1:
            raise Fails(f"it answers, and serves {len(names)} models")
        whole(heard)
        return "the one model answers to any name"
    return refusal(heard)


def a_missing_key_is_an_error(probe: Probe) -> str:
    """A missing key is 401 or 403, as an error object."""
    server = probe.target.server
    if server.key is None:
        raise NotSeen("the server was asked without a key")
    caller = Caller(replace(server, key=None), probe.caller.limit)
    heard = caller.hear("POST", CHAT, _small(probe))
    return refusal(heard, (401, 403))


def too_long_a_prompt_is_an_error_with_both_numbers(probe: Probe) -> str:
    """A prompt above the context is an error with both numbers."""
    words = min(2 * probe.target.context, _LONG) if probe.target.context else _LONG
    heard = probe.chat(messages=said("red green blue " * (words // 3)), max_tokens=1)
    if heard.status == 200:
        used = whole(heard).get("usage")
        read = used.get("prompt_tokens") if isinstance(used, dict) else None
        if isinstance(read, int) and read >= words:
            raise NotSeen(f"a prompt of {read:,} tokens fits")
        raise Fails(f"{words:,} words were answered as if they fitted; it counts {read} tokens")
    told = refusal(heard)
    numbers = _numbers(heard.json["error"])
    if len(numbers) < 2:
        raise Fails(f"without the length of the prompt and what fits: {told}")
    return told


def _numbers(error: Mapping[str, Any]) -> set[int]:
    """The numbers of more than two digits, in the text or in fields."""
    words = json.dumps(error).replace(",", "").split()
    digits = ("".join(filter(str.isdigit, word)) for word in words)
    return {int(each) for each in digits if 3 <= len(each) < 10}


def a_limit_above_the_room_is_clamped(probe: Probe) -> str:
    """A limit above the room is clamped."""
    body = {"messages": said("Hello."), "max_tokens": 10_000_000, "stream": True}
    heard = probe.caller.hear(
        "POST",
        CHAT,
        encoded({"model": probe.target.model, **body}),
        enough=lambda line: line.startswith(b"data: {"),
    )
    if heard.problem or heard.status != 200:
        raise Fails(heard.told())
    return "answered"


def hints_do_no_harm(probe: Probe) -> str:
    """Hints and unknown fields do no harm."""
    hints: dict[str, Any] = {"user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "auto"}
    hints |= {"prompt_cache_key": "k", "safety_identifier": "s", "no_such_field": 1}
    whole(probe.chat(max_tokens=2, **hints))
    return "answered"


def several_choices_are_given_or_refused(probe: Probe) -> str:
    """Several choices are given or refused, not ignored."""
    heard = offered(probe.chat(n=2, temperature=1, max_tokens=2))
    if (count := len(whole(heard).get("choices") or ())) != 2:
        raise Fails(f"n = 2 is accepted, and {count} choices come")
    return "2 choices"


CHECKS = (
    Check("HTTP", "GET /v1/models", models_are_listed),
    Check("HTTP", "GET /v1/models/ID", a_model_is_described),
    Check("HTTP", "a request in three pieces", a_chunked_body_is_read),
    Check("HTTP", "two on one connection", a_connection_serves_two_requests),
    Check("HTTP", "leaving after a chunk, then a short request", a_client_may_leave),
    Check("errors", "GET /v1/no-such-endpoint", an_unknown_path_is_an_error),
    Check("errors", "GET /v1/chat/completions", a_wrong_method_is_an_error),
    Check("errors", "half a body", what_is_no_json_is_an_error),
    Check("errors", "a list", what_is_no_object_is_an_error),
    Check("errors", "no messages", missing_messages_are_an_error),
    Check("errors", "the role wizard", an_unknown_role_is_an_error),
    Check("errors", "temperature: hot", a_wrong_type_is_an_error),
    Check("errors", "the same, streamed", an_error_before_a_stream_has_a_status),
    Check("errors", "model: no-such-model", an_unknown_model_is_an_error),
    Check("errors", "no key, where there is one", a_missing_key_is_an_error),
    Check("errors", "up to 300,000 words", too_long_a_prompt_is_an_error_with_both_numbers),
    Check("options", "max_tokens: 10,000,000", a_limit_above_the_room_is_clamped),
    Check("options", "user, metadata, store, ...", hints_do_no_harm),
    Check("options", "n: 2", several_choices_are_given_or_refused),
)  # fmt: skip
