"""Gemini's generateContent.

`to_wire` writes a conversation as `systemInstruction` and `contents` of a request, `from_wire` reads them,
`read_response` reads a response (its first candidate). Tool results go into a user content of their own.

A result in text is written `{"result": text}`, or `{"error": text}` when it failed. A result in parts is a
list there, in which `{"$ref": name}` stands for the medium of that name in the `parts` of the function
response: models before Gemini 3 take no media in results. A result that is an object is the response itself;
here it is kept as its JSON text.

What this wire cannot express, and what becomes of it:
- empty text and empty thoughts with no field beside them: left out, and so is a message without content;
- `arguments_text` that is not in json.dumps' notation, `repaired`, `fits`, `tool_kind`;
- a file id that looks like a URL, as Gemini's own do: comes back as URL; a URL that looks like none, as id;
- a recording in an image part: comes back as audio;
- provider metadata of text inside results, names of media there, metadata that is null: left out;
- metadata with a name in snake_case: comes back in camelCase;
- redacted or encrypted reasoning, a second system message, a result without the name of its tool, bytes of
  unknown type, audio that is not told by its media type, unknown parts of other origin, malformed calls,
  session messages: refused by name.

One part that cannot be read does not cost the conversation: parts of code execution, of server-side tools and
of kinds to come become `UnknownPart`s, which go back as they came, and a call whose arguments are no object
becomes a malformed call. A thought's `thoughtSignature` is its signature.
What else stands in a part (`thoughtSignature` beside a call or text, `videoMetadata`) goes into
`provider_metadata["google"]`, and back; what else stands in a content is kept in its `payload`, and stays.
Names are written in camelCase, and read in snake_case as well, as Google's Python SDK dumps its models.
Gemini 3 refuses a turn whose first call has no `thoughtSignature`; this wire makes none up.
"""

from localagent.prompt.request import Target
from localagent.wire.gemini.reading import from_wire, read_response
from localagent.wire.gemini.writing import to_wire

_IMAGES = "png jpeg webp heic heif"
_AUDIO = "wav mp3 mpeg aiff aac ogg flac"
_VIDEO = "mp4 mpeg mov avi x-flv mpg webm wmv 3gpp"

TARGET = Target(
    "the Gemini wire",
    system="slot",
    provider="google",
    reasoning="calls",
    # Plain, because Gemini signs the call behind a thought more often than the thought.
    reasoning_forms=frozenset({"plain", "signed"}),
    media_types=frozenset(
        ["application/pdf", "text/plain"]
        + [f"image/{name}" for name in _IMAGES.split()]
        + [f"audio/{name}" for name in _AUDIO.split()]
        + [f"video/{name}" for name in _VIDEO.split()]
    ),
)

__all__ = ["TARGET", "from_wire", "read_response", "to_wire"]
