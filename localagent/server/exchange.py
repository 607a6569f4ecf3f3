"""What a wire and the HTTP layer say to each other. Neither knows more of the other than this.

    body --Wire.read--> TurnRequest --Model.agroups--> events --Writer.feed--> Frames, or one object

A wire is one API: a pure translation in both directions, without a socket, a clock or chance. What it needs
to know of the world, it is given in `Answer`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from localagent.errors import (
    ContextOverflow,
    GrammarMissing,
    LocalAgentError,
    ModelMissing,
    NotEnoughMemory,
    ServerFailed,
    UnknownModel,
    UsageError,
)
from localagent.hosts.sampling import SamplingOptions
from localagent.messages import AssistantMessage, Message
from localagent.messages.values import MAX_REQUEST_DEPTH, NotJson, check_json
from localagent.prompt.rendering import ToolSchema
from localagent.prompt.segments import Raw
from localagent.tools.bounds import TOOL_BOUNDS, ToolBounds
from localagent.turn import TurnEvent
from localagent.wire.payload import Fields

Framing = Literal["sse", "ndjson"]


class BadRequest(UsageError):
    """What the client did wrong. `param` is the path of the field, such as "tools[0].type"; None: no field.

    `code`, `type` and `details` are words of the API, where it has its own for this; None leaves them to the
    wire.
    """

    def __init__(
        self,
        message: str,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
        type: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.status = status
        self.type = type
        self.details = details


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a request may be. The HTTP layer has bounded its bytes before."""

    messages: int = 10_000
    tools: ToolBounds = TOOL_BOUNDS
    images: bool = False
    """Whether the model can see."""
    prompts: int = 128
    """Prompts of one request that are continued one after the other."""


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """A request in the words of `Model.stream`, whose arguments most fields are."""

    model: str
    """The name that the client asked for; "" if it named none."""
    messages: Sequence[Message] = ()
    system: str | None = None
    tools: Sequence[ToolSchema] = ()
    options: SamplingOptions = field(default_factory=SamplingOptions)
    tool_choice: str | Mapping[str, Any] = "auto"
    parallel_tool_calls: bool = True
    response_format: Mapping[str, Any] | None = None
    strict: bool = False
    thinking: bool | str | None = None
    thinking_budget: int | None = None
    thinking_field: str = ""
    """The field that asked for thinking. It is one of those that are ignored if the model has no switch."""
    stream: bool = False
    stream_tool_calls: bool | None = None
    """Whether a stream has the arguments of calls as the model writes them; None: as the server says."""
    ignored: tuple[str, ...] = ()
    """Fields that were ignored and tools that were left out, for the header x-localagent-ignored."""
    raw_prompts: Sequence[Raw] = ()
    """What the model is to continue, without a chat template. There are no messages then."""
    choices: int = 1
    """Answers to the conversation, or to each of those prompts; no more than the model gives at once."""
    echo: bool = False
    """The writer needs the texts of the prompts: see `Answer.prompts`."""
    continue_final_message: bool = False
    keep_alive: float | None = None
    """Seconds that the model stays loaded after the answer, infinity for ever; None: as the server says."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """What the wire's own writer has to know of the request; nobody else reads it."""

    @property
    def only_loads(self) -> bool:
        """Whether the model is to be loaded, or with `keep_alive` 0 unloaded, and asked for nothing.

        Nothing is fed to the writer then, and `whole` is the answer, also for a client that wants a stream.
        """
        return not self.messages and not self.raw_prompts


@dataclass(slots=True, kw_only=True)
class Answer:
    """What a wire has to be told to write an answer; the last three when the model is loaded."""

    model: str
    """The name to answer with."""
    created: float
    """Seconds since 1970."""
    key: str
    """Random text that all ids of the answer are made of; letters and digits."""
    buffer_tool_calls: bool = True
    """Hold each call back until it is complete, so that no client sees one that fails."""
    load_seconds: float = 0.0
    """The time that it took to load the model for this answer."""
    spell: Callable[[Sequence[int]], Sequence[bytes]] | None = None
    """The bytes of each of these tokens, for log-probabilities."""
    prompts: Sequence[str] = ()
    """The texts of the prompts, if the request asks for them."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One server-sent event, or one line of NDJSON.

    A `comment` is a frame without data, which clients skip.
    """

    data: Mapping[str, Any] | str | None = None
    event: str | None = None
    comment: str | None = None

    def encode(self, framing: Framing = "sse") -> bytes:
        """The frame as it goes out; nothing for a comment where there are none."""
        text = self.data if isinstance(self.data, str) else dump(self.data)
        if framing == "ndjson":
            line = "" if self.data is None else f"{text}\n"
        elif self.data is None:
            line = f": {self.comment or ''}\n\n"
        else:
            line = f"event: {self.event}\ndata: {text}\n\n" if self.event else f"data: {text}\n\n"
        return line.encode("utf-8", "backslashreplace")  # a lone surrogate becomes its JSON escape


def dump(value: Any) -> str:
    """JSON text on one line, also for clients that end a line at any of Unicode's line separators."""
    text = _encode(value)
    return text if text.isascii() else text.translate(_SEPARATORS)


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_SEPARATORS = {ord(character): f"\\u{ord(character):04x}" for character in "\x85\u2028\u2029"}


class Writer(Protocol):
    """One answer: a function of the events of one turn.

    The same object gives the stream and, after the last event, the whole answer: what `begin` and `feed`
    return may be sent or thrown away.
    """

    def begin(self) -> list[Frame]:
        """The frames before the first event. Called once, and first."""

    def feed(self, event: TurnEvent) -> list[Frame]:
        """The frames of the next event; `Done` brings all that end the stream."""

    def keep_alive(self) -> list[Frame]:
        """Frames for a client that would otherwise hear nothing for long: the model loads, or is busy."""

    def fail(self, error: Exception) -> list[Frame]:
        """The last frames of a stream that an error broke off; nothing may follow them."""

    def whole(self) -> dict[str, Any]:
        """The answer as one object, when `Done` was fed."""


class ChoicesWriter(Writer, Protocol):
    """Several answers in one: the events of many turns that run at once."""

    def feed_choice(self, number: int, event: TurnEvent) -> list[Frame]:
        """As `feed`, for one of the turns. All choices of a prompt come before those of the next."""


class Reader(Protocol):
    """Reads a request."""

    def __call__(self, body: Any, limits: Limits = DEFAULT_LIMITS) -> TurnRequest:
        """The turn that a request asks for; `body` is any JSON value. Raises BadRequest, nothing else."""


@dataclass(frozen=True, slots=True)
class Wire:
    """One endpoint of one API."""

    path: str
    read: Reader
    writer: Callable[[TurnRequest, Answer], Writer]
    """What writes the answer to this request."""
    error: Callable[[Exception], tuple[int, dict[str, Any]]]
    """The status and the body that say in this API's own shape what went wrong."""
    framing: Framing = "sse"
    fails_in_stream: Callable[[Exception], bool] = lambda _: False
    """Whether a client that streams gets this by `Writer.fail`, even if nothing was sent before.

    Codex, for one, looks for a prompt that is too long in the stream alone.
    """
    tell: Callable[[Any, TurnRequest, Mapping[str, Any]], dict[str, Any]] | None = None
    """Where no turn is run: what a served model answers, in a thread beside the engine's. The mapping has the
    options of the request that its prompt depends on.
    """


# -- bodies -----------------------------------------------------------------------------------------------


def open_body(body: Any) -> Fields:
    """The body of a request, in which no string, number or depth can do harm any more. Raises BadRequest."""
    if not isinstance(body, dict):
        raise BadRequest("the body of a request must be a JSON object")
    try:
        check_json(body, MAX_REQUEST_DEPTH)
    except NotJson as fault:
        steps = (f"[{step}]" if isinstance(step, int) else f".{header_word(step)}" for step in fault.path)
        path = "".join(steps).lstrip(".")
        raise BadRequest(f"{path}: {fault}", path) from None
    return Fields(body, "")


def goes_on(messages: Sequence[Message]) -> bool:
    """Whether a conversation ends with words of the assistant, with which the answer then goes on.

    Calls without results do not count: they are answered first, and then it is the model's turn again.
    """
    last = messages[-1] if messages else None
    return isinstance(last, AssistantMessage) and not (last.tool_calls or last.malformed_tool_calls)


# -- options ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Refused:
    """An option that would change the meaning of the answer and cannot be had; `harmless` values ask for
    nothing that the answer would not be without it."""

    why: str
    harmless: Sequence[Any] = ()
    details: Mapping[str, Any] | None = None
    """See `BadRequest`."""


STATELESS = Refused("the server is stateless and keeps no conversations: send the whole conversation")
Option = Literal["taken", "hint"] | Refused
"""What becomes of a field: the wire reads it, it is ignored, or the request is refused."""


def sort_options(given: Mapping[str, Any], table: Mapping[str, Option]) -> tuple[str, ...]:
    """The fields that are ignored: hints, and what no table knows. A field that is null was not given.

    Raises BadRequest for an option that cannot be had.
    """
    ignored = []
    for name, value in given.items():
        how = table.get(name, "hint")
        if value is None or how == "taken":
            continue
        if how == "hint":
            ignored.append(name)
        # 1.0 is 1 in JSON, but true, which Python takes for 1, is not.
        elif not any(
            value == each and isinstance(value, bool) == isinstance(each, bool) for each in how.harmless
        ):
            raise BadRequest(f"{name}: {how.why}", name, "unsupported_parameter", details=how.details)
    return tuple(map(header_word, ignored))


@contextmanager
def opened(body: Any, table: Mapping[str, Option]) -> Iterator[tuple[Fields, list[str]]]:
    """The body of a request while it is read, and those of its fields that are ignored: see `sort_options`.

    Raises BadRequest, also for what the readers of its fields refuse.
    """
    fields = open_body(body)
    ignored = [*sort_options(body, table)]
    with refusing():
        yield fields, ignored


def header_word(name: str) -> str:
    """A name that a client chose, as a header may carry it."""
    word = "".join(c if c.isascii() and c.isprintable() and c not in ",;" else "?" for c in name[:60])
    return word if word.strip() == word else word.replace(" ", "?")  # no value begins or ends with a space


# -- errors -----------------------------------------------------------------------------------------------


def status_of(error: Exception) -> int:
    """The HTTP status that says what kind of error this is."""
    if isinstance(error, BadRequest):
        return error.status
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)


_STATUSES: Collection[tuple[type[Exception], int]] = (
    (UnknownModel, 404),
    (ContextOverflow, 400),
    (UsageError, 400),
    # What cannot be had here was asked for: asking again, as clients do after a 5xx, is no use.
    (GrammarMissing, 400),
    (NotEnoughMemory, 503),
    (ModelMissing, 503),
    (ServerFailed, 502),  # the one that draws the tokens
    (TimeoutError, 504),
    (LocalAgentError, 500),
)
"""The first line that fits counts. What is not listed is a fault of the server."""


def message_of(error: Exception) -> str:
    """What a client is told. Errors that nobody raised on purpose may hold anything, so they keep it."""
    if isinstance(error, TimeoutError):
        return str(error) or "the answer took longer than the server allows"
    return str(error) if isinstance(error, LocalAgentError) else "the server failed; its log says more"


@contextmanager
def refusing() -> Iterator[None]:
    """Turn what the readers of messages and options refuse into a BadRequest that names the field."""
    try:
        yield
    except BadRequest:
        raise
    except UsageError as error:
        path = _PATH.match(str(error))
        raise BadRequest(str(error), path.group().removesuffix(": ") if path else None) from None


_PATH = re.compile(r"[A-Za-z_]\w*(?:\.\w+|\[\d+\])*: ")
"""How readers begin what they say: with the path of the field."""
