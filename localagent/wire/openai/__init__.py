"""The messages of OpenAI's chat completions API, which most servers and clients speak.

`to_wire` writes a conversation, `from_wire` reads one, `read_response` reads what the API answers, and
`read_input` what is sent to the responses API. What this wire cannot express:
- a message without parts: it comes back with one empty text; assistant turns lose empty text;
- the order of text and calls within a turn: reasoning, then text, then calls;
- names of results, `is_error` and the borders between tool messages of one turn (a failure is told in the
  text of its result); results with images or other parts than text: refused by name;
- a media type that the URL's extension does not tell;
- assistant turns with images or audio, media by URL other than images, bytes of unknown type, unknown parts
  of other origin, malformed calls: refused by name;
- the role "developer" is read as a system message, and comes back as "system".

Reasoning is read from `reasoning_content`, `reasoning` and `thinking`, and written as `reasoning_content`.
Signed and encrypted reasoning, and reasoning in several parts, stands in `reasoning_details` instead, the
form that routers in front of signing providers use, verbatim and in order. Malformed calls are read from
`malformed_tool_calls`, where localagent's own server writes them.

One part that cannot be read does not cost the conversation: a part of unknown type becomes an `UnknownPart`,
which goes back as it came, and a call whose arguments are no object, or repeat a key, a malformed call. What
else stands in a part goes into `provider_metadata["openai"]`, and back; what else stands in a message is kept
in its `payload`, and stays.
"""

from localagent.prompt.request import Target
from localagent.wire.openai.items import read_input
from localagent.wire.openai.reading import from_wire, read_response
from localagent.wire.openai.writing import to_wire

TARGET = Target(
    "the OpenAI wire",
    call_ids="given",
    provider="openai",
    reasoning_forms=frozenset({"plain", "signed", "encrypted", "redacted"}),
    media_types=frozenset(
        {"image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf", "audio/wav", "audio/mpeg"}
    ),
)

__all__ = ["TARGET", "from_wire", "read_input", "read_response", "to_wire"]
