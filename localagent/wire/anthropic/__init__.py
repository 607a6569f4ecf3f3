"""Anthropic's Messages API.

`to_wire` writes a conversation as `system` and `messages` of a request, `from_wire` reads them,
`read_response` reads a message that the API answers. A turn with thinking must begin with it: where it does
not, its thinking moves to the front. Tool results go into a user turn of their own.

What this wire cannot express, and what becomes of it:
- text without anything but white space: left out, as the API refuses it, and so is a message without content;
- call ids with other characters than letters, digits, `_` and `-`: written in those, with a checksum;
- the name of a result: it is that of its call;
- `arguments_text` that is not in json.dumps' notation, `repaired`, `fits`, `tool_kind`, null metadata;
- the media type of what goes by URL or file id: an image or a document, and a document is a PDF;
- reasoning without a signature, encrypted reasoning that is not redacted, a second system message, a call
  without an id, bytes of unknown type, documents that are not UTF-8 or go by URL and are no PDF, audio,
  images in assistant turns, unknown parts of other origin, malformed calls, session messages: refused by
  name.

One part that cannot be read does not cost the conversation: blocks of unknown type, such as those of server
tools, and documents made of blocks become `UnknownPart`s, which go back as they came, and a call whose input
is no object becomes a malformed call. A system turn in the midst of `messages` is read where it stands. What
else stands in a block (`cache_control`, `citations`) goes into `provider_metadata["anthropic"]`, and back;
what else stands in a turn is kept in its `payload`, and stays.
"""

from localagent.prompt.request import Target
from localagent.wire.anthropic.reading import from_wire, read_response
from localagent.wire.anthropic.writing import DOCUMENT_TYPES, IMAGE_TYPES, to_wire

TARGET = Target(
    "the Anthropic wire",
    system="slot",
    reasoning="calls",
    reasoning_forms=frozenset({"signed", "redacted"}),
    media_types=IMAGE_TYPES | DOCUMENT_TYPES,
    call_ids="unique",
    provider="anthropic",
)

__all__ = ["TARGET", "from_wire", "read_response", "to_wire"]
