"""Arbitrary messages: everything the model can hold."""

from __future__ import annotations

from datetime import UTC

from hypothesis import strategies as st

from localagent.messages import (
    AssistantMessage,
    AudioPart,
    BranchSummaryMessage,
    CompactionSummaryMessage,
    CustomMessage,
    FlushMessage,
    ImagePart,
    MalformedToolCallPart,
    ReasoningPart,
    RescueMessage,
    SystemMessage,
    TextPart,
    Timings,
    ToolCallPart,
    ToolMessage,
    ToolResultPart,
    UnknownPart,
    Usage,
    UsageCost,
    UserMessage,
)
from parsers import Misfit, MisfitKind

text = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=12)
name = st.text(alphabet="abcdef_-.1", min_size=1, max_size=8)
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
json_objects = st.dictionaries(text, json_values, max_size=3)
metadata = st.just({}) | st.dictionaries(
    st.sampled_from(["openai", "anthropic", "google"]), json_objects, max_size=2
)
maybe_text = st.none() | text

MAGIC = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff\xe0": "image/jpeg",
    b"GIF89a": "image/gif",
    b"RIFF\x04\0\0\0WEBPVP8 ": "image/webp",
    b"%PDF-1.7": "application/pdf",
}
SOUNDS = {
    b"ID3\x04": "audio/mpeg",
    b"\xff\xfb\x90": "audio/mpeg",
    b"OggS\0": "audio/ogg",
    b"fLaC\0": "audio/flac",
    b"RIFF\x04\0\0\0WAVEfmt ": "audio/wav",
}


def files(magic: dict[bytes, str]):
    return st.builds(lambda head, rest: head + rest, st.sampled_from(list(magic)), st.binary(max_size=8))


texts = st.builds(TextPart, text=text, provider_metadata=metadata)
reasoning = st.builds(
    ReasoningPart, text=text, signature=maybe_text, encrypted=maybe_text, redacted=st.booleans(),
    provider_metadata=metadata,
)  # fmt: skip
images = st.one_of(
    st.builds(ImagePart, data=files(MAGIC)),
    st.builds(ImagePart, data=st.binary(min_size=1, max_size=8), media_type=maybe_text),
    st.builds(ImagePart, url=st.sampled_from(["https://a.b/c.jpg", "https://a.b/c?d=e", "gs://a/b.pdf"])),
    st.builds(ImagePart, file_id=name, media_type=st.none() | st.just("image/png")),
)
audio = st.builds(AudioPart, data=files(SOUNDS) | st.binary(min_size=1, max_size=8))
unknown = st.builds(
    lambda kind, fields: UnknownPart(kind=kind, **fields),
    st.sampled_from(["smell", "video", "x"]),
    st.dictionaries(name.filter(str.isidentifier), json_values, max_size=2),
)
calls = st.builds(
    ToolCallPart, id=text, name=name, arguments=json_objects, tool_kind=maybe_text, repaired=st.booleans(),
    provider_metadata=metadata, fits=st.sampled_from([None, True, (Misfit(MisfitKind.TYPE, "/a"),)]),
)  # fmt: skip
malformed = st.builds(
    MalformedToolCallPart, raw=text, reason=text, name=maybe_text, partial=json_objects, id=text
)
results = st.builds(
    ToolResultPart,
    call_id=text,
    name=text,
    content=text | st.lists(texts | images | audio | unknown, max_size=2).map(tuple),
    is_error=st.booleans(),
    metadata=json_objects,
    terminate=st.booleans(),
)
common = {
    "id": maybe_text,
    "timestamp": st.none() | st.datetimes(timezones=st.just(UTC)),
    "source": maybe_text,
    "agent_name": maybe_text,
    "mode": st.sampled_from([None, "user", "tool"]),
    "payload": json_values,
}


def lists_of(*parts, **sizes):
    return st.lists(st.one_of(*parts), max_size=4, **sizes).map(tuple)


system = st.builds(SystemMessage, content=lists_of(texts, unknown), **common)
user = st.builds(UserMessage, content=lists_of(texts, images, audio, results, unknown), **common)
assistant = st.builds(
    AssistantMessage,
    content=lists_of(texts, reasoning, calls, malformed, images, audio, unknown),
    usage=st.builds(
        Usage, input=st.integers(0, 9), output=st.integers(0, 9), cache_read=st.integers(0, 9),
        cost=st.builds(UsageCost, input=st.floats(0, 9), output=st.floats(0, 9)),
    ),
    timings=st.builds(Timings, prefill=st.floats(0, 9)),
    stop_reason=st.sampled_from(["stop", "length", "tool_calls", "content_filter", "cancelled", "error"]),
    error=maybe_text,
    model=maybe_text,
    raw=maybe_text,
    **common,
)  # fmt: skip
tool = st.builds(ToolMessage, content=lists_of(results, unknown, min_size=1), **common)
session = st.one_of(
    st.builds(CustomMessage, custom_type=name, content=lists_of(texts, images, calls, unknown), **common),
    st.builds(BranchSummaryMessage, content=lists_of(texts), branch=maybe_text, **common),
    st.builds(CompactionSummaryMessage, content=lists_of(texts), **common),
    st.builds(RescueMessage, content=lists_of(texts), **common),
    st.builds(FlushMessage, **common),
)
messages = st.one_of(system, user, assistant, tool, session)
conversations = st.lists(messages, max_size=5)
