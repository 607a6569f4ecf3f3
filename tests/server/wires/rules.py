"""The rules of the wires, checked on any stream whatever, and what the `openai` package makes of it."""

from __future__ import annotations

import json
from functools import cache
from typing import Any, get_args

from openai import omit
from openai._models import construct_type
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent

DELTAS = {"role", "content", "reasoning_content", "tool_calls", "malformed_tool_calls", "unfit_tool_calls"}


def deltas_of(data: list[Any], field: str) -> list[Any]:
    """What the chunks have in one field of their deltas, in order."""
    found = [choice["delta"] for chunk in data if chunk != "[DONE]" for choice in chunk["choices"]]
    return [delta[field] for delta in found if field in delta]


def check_chat(data: list[Any], whole: dict[str, Any], usage: bool = False) -> None:
    """Everything that holds of a stream of chat completions and of the whole answer."""
    assert data[-1] == "[DONE]"
    chunks = data[:-1]
    for chunk in chunks:
        if '"type": "custom"' not in json.dumps(chunk):  # the API has such calls, its type of chunks has not
            ChatCompletionChunk.model_validate(chunk, strict=True)
        for choice in chunk["choices"]:
            assert set(choice["delta"]) <= DELTAS and len(choice["delta"]) <= 1
    assert [chunk["choices"] == [] for chunk in chunks].count(True) == usage
    if usage:
        assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == whole["usage"]
    assert all("usage" not in chunk for chunk in (chunks[:-1] if usage else chunks))
    assert [chunk["timings"] for chunk in chunks if "timings" in chunk] == [whole["timings"]]
    first, last = chunks[0]["choices"][0], chunks[-2 if usage else -1]["choices"][0]
    assert first["delta"] == {"role": "assistant"}
    assert last["delta"] == {} and last["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert sum(bool(c["choices"] and c["choices"][0]["finish_reason"]) for c in chunks) == 1
    names = check_calls(data)
    ChatCompletion.model_validate(whole, strict=True)
    message = whole["choices"][0]["message"]
    called = bool(message.get("tool_calls"))
    assert (last["finish_reason"] == "tool_calls") is called
    kept = [name for name, back in zip(names, taken_back(data), strict=True) if not back]
    assert kept == [
        call.get("function", call.get("custom"))["name"] for call in message.get("tool_calls", ())
    ]
    alone = {
        name: value for name, value in whole.items() if name not in ("usage", "timings", "relaxed_schemas")
    }
    assert folded(chunks) == said(alone)


def check_calls(data: list[Any]) -> list[str]:
    """The rules for calls in deltas. Returns the names that were announced."""
    names: list[str] = []
    written: list[str] = []
    for entries in deltas_of(data, "tool_calls"):
        (entry,) = entries
        index = entry["index"]
        assert type(index) is int and 0 <= index <= len(names)
        inner = entry.get("function", entry.get("custom"))
        if index == len(names):
            assert set(entry) in ({"index", "id", "type", "function"}, {"index", "id", "type", "custom"})
            assert set(inner) in ({"name", "arguments"}, {"name", "input"})
            assert entry["id"] and not inner.get("arguments") and not inner.get("input")
            names.append(inner["name"])
            written.append("")
        else:
            assert set(entry) in ({"index", "function"}, {"index", "custom"})
            assert set(inner) in ({"arguments"}, {"input"})
            written[index] += inner.get("arguments", "")
            assert is_prefix(written[index])
    malformed = deltas_of(data, "malformed_tool_calls")
    assert all(bool(entry["arguments"]) is bool(entry["id"]) for (entry,) in malformed)
    assert [entry["index"] for (entry,) in malformed] == list(range(len(malformed)))
    return names


def taken_back(data: list[Any]) -> list[bool]:
    """Of each call that was announced, whether an entry for malformed calls takes it back."""
    back = {entry["id"] for (entry,) in deltas_of(data, "malformed_tool_calls")}
    return [entry["id"] in back for (entry,) in deltas_of(data, "tool_calls") if "id" in entry]


def is_prefix(text: str) -> bool:
    """Whether some JSON object begins like this."""
    closers: list[str] = []
    quoted = escaped = False
    for char in text:
        if quoted:
            escaped, quoted = not escaped and char == "\\", escaped or char != '"'
        elif char == '"':
            quoted = True
        elif char in "{[":
            closers.append("}" if char == "{" else "]")
        elif char in "}]" and closers.pop() != char:
            return False
    if closers or quoted:
        return text.startswith("{")
    return text == "" or isinstance(json.loads(text), dict)


def folded(chunks: list[Any]) -> dict[str, Any]:
    """The chunks as the openai package joins them, without the numbers, which `check_chat` compares by itself.

    A call that was taken back is left out by whoever knows of such calls.
    """
    state = ChatCompletionStreamState()
    for chunk in chunks:
        list(state.handle_chunk(construct_type(type_=ChatCompletionChunk, value=chunk)))
    snapshot = state.current_completion_snapshot.to_dict()
    (choice,) = snapshot["choices"]
    message = choice["message"]
    back = {entry["id"] for entry in message.get("malformed_tool_calls") or ()}
    announced = message.pop("tool_calls", None) or ()
    for entry in message.get("unfit_tool_calls") or ():  # the place among the calls that are left
        entry["index"] -= sum(call["id"] in back for call in announced[: entry["index"]])
    calls = [strip(call) for call in announced if call["id"] not in back]
    message.pop("parsed", None)
    if calls:
        message["tool_calls"] = calls
    return said({name: snapshot[name] for name in ("id", "object", "created", "model", "choices")})


def strip(call: dict[str, Any]) -> dict[str, Any]:
    call = {name: value for name, value in call.items() if name != "index"}
    if call.get("function"):
        call["function"].pop("parsed_arguments", None)
    return call


def said(value: Any) -> Any:
    """A JSON value without fields that are null."""
    if isinstance(value, dict):
        return {name: said(item) for name, item in value.items() if item is not None}
    return [said(item) for item in value] if isinstance(value, list) else value


# -- responses --------------------------------------------------------------------------------------------


@cache
def event_types() -> dict[str, Any]:
    """The package's class of each event."""
    union = get_args(ResponseStreamEvent)[0]
    return {get_args(each.model_fields["type"].annotation)[0]: each for each in get_args(union)}


def check_response(data: list[dict[str, Any]], whole: dict[str, Any]) -> None:
    """Everything that holds of a stream of the responses API and of the whole answer."""
    for event in data:
        event_types()[event["type"]].model_validate(event)
    Response.model_validate(whole)
    assert [event["sequence_number"] for event in data] == list(range(len(data)))
    assert [event["type"] for event in data[:2]] == ["response.created", "response.in_progress"]
    assert {event["response"]["id"] for event in data if "response" in event} == {whole["id"]}
    assert data[-1]["type"] == f"response.{whole['status']}" and data[-1]["response"] == whole
    assert all("response" not in event for event in data[2:-1] if event["type"] != "response.in_progress")
    done = [unscored(item) for item in check_items(data)]
    output = [unscored(item) for item in whole["output"]]
    good = [item for item in done if item["status"] == "completed" or "content" in item]
    assert output == [item for item in good if item in output]
    back = {entry["id"] for entry in whole.get("malformed_tool_calls", ())} - {None}
    assert {item.get("call_id") for item in done if item not in output} == back
    state: Any = ResponseStreamState(input_tools=omit, text_format=omit)
    for event in data:
        state.handle_event(event_types()[event["type"]].model_validate(event))


def unscored(item: dict[str, Any]) -> dict[str, Any]:
    """An item without log-probabilities, which are known only when the turn has ended."""
    if "content" not in item:
        return item
    return {**item, "content": [{**part, "logprobs": []} for part in item["content"]]}


def check_items(data: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each item is announced empty, written and done before the next. Returns the items as they were done."""
    done: list[dict[str, Any]] = []
    added: dict[str, Any] | None = None
    text = ""
    for event in data:
        kind = event["type"]
        if "output_index" in event:
            assert event["output_index"] == len(done)
        if kind == "response.output_item.added":
            assert added is None
            added, text = event["item"], ""
            assert added["status"] == "in_progress"
            assert added.get("content", []) == [] and not added.get("arguments") and not added.get("input")
        elif kind.endswith(".delta"):
            assert added is not None and event["item_id"] == added["id"]
            text += event["delta"]
        elif kind == "response.output_item.done":
            item = event["item"]
            assert added is not None
            assert {n: item[n] for n in ("id", "type")} == {n: added[n] for n in ("id", "type")}
            assert item.get("call_id") == added.get("call_id") and item.get("name") == added.get("name")
            parts = "".join(part["text"] for part in item.get("content", ()))
            assert text == parts + item.get("arguments", "") + item.get("input", "")
            if "arguments" in item:
                assert (item["status"] == "completed") is is_whole(text) and is_prefix(text)
            done.append(item)
            added = None
        elif kind.endswith(".done"):
            assert event.get("text", event.get("arguments", event.get("input", text))) == text
    assert added is None
    return done


def is_whole(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


# -- completions ------------------------------------------------------------------------------------------


def check_completion(data: list[Any], whole: dict[str, Any], usage: bool = False) -> None:
    """Everything that holds of a stream of completions and of the whole answer."""
    assert data[-1] == "[DONE]"
    choices = []
    for chunk in data[:-1]:
        assert {name: chunk[name] for name in ("id", "object", "created", "model")} == {
            name: whole[name] for name in ("id", "object", "created", "model")
        }
        choices += chunk["choices"]
    Completion.model_validate(whole, strict=True)
    (choice,) = whole["choices"]
    assert "".join(each["text"] for each in choices) == choice["text"]
    assert [each["finish_reason"] for each in choices if each["finish_reason"]] == [choice["finish_reason"]]
    assert choices[-1]["finish_reason"] == choice["finish_reason"]
    assert [each["logprobs"] for each in choices if each["logprobs"]] == (
        [choice["logprobs"]] if choice["logprobs"] else []
    )
    assert [chunk["usage"] for chunk in data[:-1] if "usage" in chunk] == ([whole["usage"]] if usage else [])
