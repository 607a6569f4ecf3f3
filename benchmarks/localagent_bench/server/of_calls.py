"""Checks of tool calls: whole, streamed, chosen and forbidden."""

from __future__ import annotations

import json
from typing import Any

from localagent.wording import quoted
from localagent_bench.server.hearing import Heard
from localagent_bench.server.rules import (
    TOOLS,
    Check,
    Fails,
    NotSeen,
    Probe,
    choices_of,
    deltas_of,
    differs,
    finish_of,
    message,
    offered,
    text_of,
    whole,
)

_NAMES = [tool["function"]["name"] for tool in TOOLS]


def _calls(heard: Heard) -> list[dict[str, Any]]:
    """The calls of a whole answer. Raises Fails, NotOffered."""
    calls = message(offered(heard)).get("tool_calls") or []
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise Fails(f"tool_calls is {quoted(str(calls))}")
    return calls


def _some_calls(heard: Heard) -> list[dict[str, Any]]:
    """The same. Raises NotSeen where there are none."""
    calls = _calls(heard)
    if not calls:
        raise NotSeen(f"the model made no call: {quoted(text_of(heard), 60)}")
    return calls


def _object(text: Any) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (TypeError, ValueError) as error:
        raise Fails(f"the arguments are no JSON: {quoted(str(text))}") from error
    if not isinstance(found, dict):
        raise Fails(f"the arguments are no object: {quoted(text)}")
    return found


def a_call_has_its_shape(probe: Probe) -> str:
    """A call has id, type, a tool's name, and JSON as arguments."""
    heard = probe.call()
    calls = _some_calls(heard)
    if finish_of(heard) == "length":
        raise NotSeen("the call was cut before its end")
    ids = [call.get("id") for call in calls]
    if not all(isinstance(each, str) and each for each in ids) or len(set(ids)) < len(ids):
        raise Fails(f"the ids are {quoted(str(ids))}")
    for call in calls:
        function = call.get("function")
        if call.get("type") != "function" or not isinstance(function, dict):
            raise Fails(f"a call is {quoted(str(call))}")
        if function.get("name") not in _NAMES:
            raise Fails(f"it calls {function.get('name')!r:.40}")
        _object(function.get("arguments"))
    first = calls[0]["function"]
    return quoted(f"{first['name']}({first['arguments']})")


def a_turn_of_calls_ends_with_tool_calls(probe: Probe) -> str:
    """A turn of calls ends with tool_calls."""
    heard = probe.call()
    _some_calls(heard)
    if finish_of(heard) == "length":
        raise NotSeen("the call was cut before its end")
    if finish_of(heard) != "tool_calls":
        raise Fails(f"finish_reason {finish_of(heard)}")
    return "tool_calls"


def a_turn_of_calls_alone_has_null_content(probe: Probe) -> str:
    """Without text, the content of a turn of calls is null."""
    heard = probe.call()
    _some_calls(heard)
    answer = message(heard)
    if "content" not in answer or answer["content"] == "":
        raise Fails("content is missing" if "content" not in answer else 'content is ""')
    return "null" if answer["content"] is None else "text beside the call"


# -- streamed ---------------------------------------------------------------------------------------------


def _entries(heard: Heard) -> list[dict[str, Any]]:
    """The entries of all deltas. Raises NotSeen where there are none."""
    found = []
    for delta in deltas_of(offered(heard)):
        entries = delta.get("tool_calls") or []
        if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
            raise Fails(f"tool_calls is {quoted(str(entries))}")
        found += entries
    if not found:
        raise NotSeen("the model made no call")
    return found


def entries_have_dense_indices(probe: Probe) -> str:
    """Every streamed entry has an index; they are dense from 0."""
    seen = 0
    for entry in _entries(probe.call(stream=True)):
        index = entry.get("index")
        if type(index) is not int or not 0 <= index <= seen:
            raise Fails(f"an entry has the index {index!r:.20}, after {seen} calls")
        seen = max(seen, index + 1)
    return f"{seen} call{'s' * (seen > 1)}"


def a_call_is_announced_once(probe: Probe) -> str:
    """Id, type and name come once, in a call's first entry."""
    known: dict[Any, str] = {}
    for entry in _entries(probe.call(stream=True)):
        index, function = entry.get("index"), entry.get("function")
        if not isinstance(function, dict):
            raise Fails(f"an entry without a function: {quoted(str(entry))}")
        if index not in known:
            if not entry.get("id") or not function.get("name") or entry.get("type") != "function":
                raise Fails(f"the first entry of a call lacks its id, type or name: {quoted(str(entry))}")
            known[index] = entry["id"]
        elif function.get("name"):
            raise Fails(f"the name comes again: {quoted(str(entry))}")
        elif entry.get("id") not in (None, known[index]):
            raise Fails(f"the id changes to {quoted(str(entry['id']))}")
    return "id, type and name in the first entry alone"


def a_chunk_holds_one_entry(probe: Probe) -> str:
    """A chunk holds one entry."""
    heard = probe.call(stream=True)
    _entries(heard)
    most = max(len(delta.get("tool_calls") or ()) for delta in deltas_of(heard))
    if most > 1:
        raise Fails(f"{most} entries in one chunk: some clients read the first alone")
    return "one"


def a_stream_of_calls_ends_with_tool_calls(probe: Probe) -> str:
    """A stream of calls ends with tool_calls and an empty delta."""
    heard = probe.call(stream=True)
    _entries(heard)
    last = choices_of(heard)[-1]
    if last.get("finish_reason") == "length":
        raise NotSeen("the call was cut before its end")
    if last.get("finish_reason") != "tool_calls" or any(last["delta"].values()):
        raise Fails(f"finish_reason {last.get('finish_reason')}, delta {quoted(str(last['delta']))}")
    return "tool_calls, with an empty delta"


def pieces_join_to_the_whole(probe: Probe) -> str:
    """Streamed pieces join to the arguments of the whole answer."""
    heard = probe.call(stream=True)
    joined: dict[Any, str] = {}
    names: dict[Any, Any] = {}
    pieces = 0
    for entry in _entries(heard):
        function = entry.get("function") or {}
        piece = function.get("arguments")
        if not isinstance(piece, str | None):
            raise Fails(f"arguments are no text: {quoted(str(piece))}")
        joined[entry.get("index")] = joined.get(entry.get("index"), "") + (piece or "")
        names[entry.get("index")] = names.get(entry.get("index")) or function.get("name")
        pieces += bool(piece)
    if choices_of(heard)[-1].get("finish_reason") == "length":
        raise NotSeen("the call was cut before its end")
    streamed = [(names[index], _object(text)) for index, text in joined.items()]
    answered = _told(probe.call())
    if streamed != answered:
        if _told(probe.call(again=1)) != answered:
            raise NotSeen("the likeliest tokens are not the same each time")
        differs("the stream and the answer differ", json.dumps(streamed), json.dumps(answered))
    return f"{pieces} piece{'s' * (pieces != 1)}"


def _told(heard: Heard) -> list[tuple[Any, Any]]:
    functions = [call.get("function") or {} for call in _calls(heard)]
    return [(each.get("name"), _object(each.get("arguments"))) for each in functions]


# -- chosen -----------------------------------------------------------------------------------------------


def none_forbids_calls(probe: Probe) -> str:
    """tool_choice none: no call."""
    heard = probe.call(tool_choice="none")
    if calls := _calls(heard):
        raise Fails(f"it calls {quoted(str((calls[0].get('function') or {}).get('name')))}")
    if finish_of(heard) == "tool_calls":
        raise Fails("finish_reason is tool_calls, without a call")
    return quoted(text_of(heard), 40)


def required_forces_a_call(probe: Probe) -> str:
    """tool_choice required: a call."""
    heard = probe.call(tool_choice="required", messages=[{"role": "user", "content": "Say hello."}])
    if not _calls(heard):
        if finish_of(heard) == "length":
            raise NotSeen("the answer was cut before its end")
        raise Fails(f"it is accepted, and the answer is {quoted(text_of(heard))}")
    return f"{len(_calls(heard))} calls"


def a_named_tool_is_called(probe: Probe) -> str:
    """tool_choice with a name: that tool."""
    heard = probe.call(tool_choice={"type": "function", "function": {"name": "get_time"}})
    names = [(call.get("function") or {}).get("name") for call in _calls(heard)]
    if not names and finish_of(heard) == "length":
        raise NotSeen("the answer was cut before its end")
    if not names or set(names) != {"get_time"}:
        raise Fails(f"get_time was demanded, and it calls {quoted(str(names))}")
    return "get_time"


def one_call_where_no_more_are_allowed(probe: Probe) -> str:
    """parallel_tool_calls false: one call."""
    asked = "What is the weather in Oslo, in Rome and in Paris? Call get_weather for each."
    heard = probe.call(
        parallel_tool_calls=False, messages=[{"role": "user", "content": asked}], max_tokens=256
    )
    if len(calls := _some_calls(heard)) > 1:
        raise Fails(f"{len(calls)} calls")
    return "one"


def unknown_kinds_of_tools_do_no_harm(probe: Probe) -> str:
    """Unknown kinds of tools do no harm."""
    heard = probe.call(tools=[{"type": "web_search"}, *TOOLS], tool_choice=None)
    whole(heard)
    return "answered"


CHECKS = (
    Check("tool calls", "tools", a_call_has_its_shape),
    Check("tool calls", "the same", a_turn_of_calls_ends_with_tool_calls),
    Check("tool calls", "the same", a_turn_of_calls_alone_has_null_content),
    Check("tool calls", "the same, streamed", entries_have_dense_indices),
    Check("tool calls", "the same", a_call_is_announced_once),
    Check("tool calls", "the same", a_chunk_holds_one_entry),
    Check("tool calls", "the same", a_stream_of_calls_ends_with_tool_calls),
    Check("tool calls", "both, at temperature 0", pieces_join_to_the_whole),
    Check("tool calls", "none", none_forbids_calls),
    Check("tool calls", "required", required_forces_a_call),
    Check("tool calls", "get_time", a_named_tool_is_called),
    Check("tool calls", "three cities", one_call_where_no_more_are_allowed),
    Check("tool calls", "web_search beside functions", unknown_kinds_of_tools_do_no_harm),
)  # fmt: skip
