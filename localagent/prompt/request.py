"""The request builder: decides what is sent of a stored conversation, by these rules.

1. Author order is never changed; a part of unknown kind is refused by name, unless the target's own provider
   sent it.
2. System messages become one, in front, where the wire has a slot for it; elsewhere they stay.
3. Reasoning goes back on turns that made tool calls and is left out of plain ones, unless the target asks
   otherwise; what is signed or encrypted goes back as it is.
4. N calls have N results, in the order of the calls, directly after them. Results are paired by position
   where the ids agree, then by id. A call without a result gets an error result; a result without a call is
   an error.
5. A flush cuts what came before it; summaries and rescues become user messages; custom messages never go out;
   a malformed call goes back as the text the model wrote, followed by an error result, unless a rescue
   answers it or no call was lost.
6. What is local stays: everything but role and content, and of results `metadata` and `terminate`.
7. A model without vision gets no images, with one warning; any other media that it cannot take are an error.
8. Provider metadata is sent unchanged.

Storage keeps everything: the messages that come in are never changed, and `Request.left_out` names each part
that does not go out. Wires turn `Request.messages` into payloads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

from localagent.errors import UnpairedResult, Unsupported, UsageError
from localagent.messages import (
    AssistantMessage,
    AudioPart,
    BaseMessage,
    BranchSummaryMessage,
    CompactionSummaryMessage,
    CustomMessage,
    FlushMessage,
    ImagePart,
    MalformedToolCallPart,
    Message,
    ModelMessage,
    ReasoningPart,
    RescueMessage,
    SystemMessage,
    TextPart,
    ToolCallPart,
    ToolMessage,
    ToolResultPart,
    UnknownPart,
    UserMessage,
)
from localagent.prompt.pairing import AnsweredCalls, Asked, describe_unpaired
from localagent.wording import quoted

M = TypeVar("M", bound=BaseMessage)
ReasoningForm = Literal["plain", "signed", "encrypted", "redacted"]
"""Text alone, text with its provider's signature, or one of two sorts of what only the provider can read."""
Why = Literal["flushed", "custom", "plain_turn", "reasoning_form", "no_vision", "empty"]

BRANCH = "Summary of another branch of this conversation:\n\n"
COMPACTION = "Summary of the conversation so far:\n\n"
MISSING = "No result: this call was not run, or its result was lost."
FAILED = "The tool failed and said nothing."
UNREADABLE = (
    "This tool call could not be read ({}) and was not run. Write it again, complete and well formed."
)


@dataclass(frozen=True, slots=True)
class Target:
    """What the receiving side can take: the provider's format, and the model behind it."""

    name: str
    system: Literal["slot", "inline"] = "inline"
    reasoning: Literal["calls", "all", "none"] = "calls"
    """On which assistant turns reasoning goes back: those with tool calls, all, none."""
    reasoning_forms: frozenset[ReasoningForm] = frozenset({"plain", "signed"})
    vision: bool = True
    media_types: frozenset[str] = frozenset()
    """The media types that can be sent; a URL or file id without a known type is left to the wire."""
    orphan_results: bool = False
    """A result may stand without a call, and so answer a malformed one. Elsewhere a user message does."""
    call_ids: Literal["any", "given", "unique"] = "any"
    """Whether calls need an id, and whether one may be repeated in a conversation; repeats get a number."""
    provider: str | None = None
    """The provider whose signatures and encryption are sent; others are left out. None: send all."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A part that does not go out, or a whole message when `part` is None. `message` counts from 0."""

    message: int
    why: Why
    part: Any = None


@dataclass(frozen=True, slots=True)
class RequestWarning:
    """Something about a request that a person should hear of."""

    kind: Literal["images_removed", "thinking", "tool_choice", "history"]
    text: str


@dataclass(frozen=True, slots=True)
class Request:
    """What goes out, and an account of what does not."""

    messages: tuple[ModelMessage, ...]
    left_out: tuple[LeftOut, ...] = ()
    warnings: tuple[RequestWarning, ...] = ()


def build_request(messages: Sequence[Message], target: Target) -> Request:
    """The messages to send. Raises Unsupported, UnpairedResult; both name the message, counted from 0."""
    builder = _Builder(target)
    start = max((at for at, m in enumerate(messages) if isinstance(m, FlushMessage)), default=-1) + 1
    builder.left_out += (LeftOut(at, "flushed") for at in range(start))
    for at in range(start, len(messages)):
        builder.add(at, messages[at])
    return builder.finish()


class _Builder:
    """A request while it is built. `_sent` holds a gap for results until the batch of calls is complete."""

    def __init__(self, target: Target) -> None:
        self.left_out: list[LeftOut] = []
        self._target = target
        self._sent: list[ModelMessage | None] = []
        self._systems: list[SystemMessage] = []
        self._batch: AnsweredCalls | None = None
        self._images = 0
        self._ids: set[str] = set()

    def add(self, at: int, message: Message) -> None:
        """Take the next message."""
        match message:
            case SystemMessage():
                self._add_system(at, message)
            case UserMessage():
                self._add_user(at, message)
            case AssistantMessage():
                self._add_assistant(at, message)
            case ToolMessage():
                self._add_results(at, message.content)
            case CustomMessage():  # a FlushMessage is none of those that are sent
                self.left_out.append(LeftOut(at, "custom"))
            case BranchSummaryMessage() | CompactionSummaryMessage() | RescueMessage():
                self._add_synthetic(at, message)
            case _:
                raise UsageError(f"message {at} is not a message, but {type(message).__name__}")

    def finish(self) -> Request:
        """The request, once all messages are in."""
        self._close_batch()
        sent = tuple(message for message in self._sent if message is not None)
        if self._systems:
            sent = (_one_system(self._systems), *sent)
        warnings: tuple[RequestWarning, ...] = ()
        if self._images:
            warnings = (
                RequestWarning(
                    "images_removed",
                    f"{self._target.name} sees no images: {self._images} left out of the request",
                ),
            )
        return Request(sent, tuple(self.left_out), warnings)

    # -- one kind of message each ---------------------------------------------------------------------

    def _add_system(self, at: int, message: SystemMessage) -> None:
        content = self._carried(at, message.content)
        kept = _sent(SystemMessage, content)
        if self._target.system == "inline":
            self._sent.append(kept)
        elif kept.text:
            self._systems.append(kept)
        else:
            self.left_out.append(LeftOut(at, "empty"))

    def _add_user(self, at: int, message: UserMessage) -> None:
        results = tuple(part for part in message.content if isinstance(part, ToolResultPart))
        if results:
            self._add_results(at, results)
            if len(results) == len(message.content):
                return
        others = (part for part in message.content if not isinstance(part, ToolResultPart))
        self._sent.append(_sent(UserMessage, self._carried(at, others)))

    def _add_synthetic(
        self, at: int, message: BranchSummaryMessage | CompactionSummaryMessage | RescueMessage
    ) -> None:
        if isinstance(message, RescueMessage) and self._batch:
            self._batch.rescued = True
        opening = {"branch_summary": BRANCH, "compaction_summary": COMPACTION}.get(message.role)
        content = self._carried(at, message.content)
        if opening:
            content = (TextPart(text=opening), *content)
        joined = TextPart(text="".join(part.text for part in content))
        self._sent.append(_sent(UserMessage, (joined,)))

    def _add_assistant(self, at: int, message: AssistantMessage) -> None:
        self._close_batch()
        calling = any(isinstance(part, ToolCallPart | MalformedToolCallPart) for part in message.content)
        content: list[Any] = []
        asked: list[Asked] = []
        sent: list[Asked] = []
        for part in message.content:
            match part:
                case ReasoningPart():
                    if (why := self._unwanted(part, calling)) is None:
                        content.append(part)
                    else:
                        self.left_out.append(LeftOut(at, why, part))
                case ToolCallPart():
                    asked.append(part)
                    sent.append(self._with_own_id(part))
                    content.append(sent[-1])
                case MalformedToolCallPart():
                    asked.append(part)
                    sent.append(part)
                    content.append(TextPart(text=part.raw))
                case _:
                    content += self._carried(at, (part,))
        if not content:
            self.left_out.append(LeftOut(at, "empty"))
            return
        self._sent.append(_sent(AssistantMessage, tuple(content)))
        if asked:
            self._batch = AnsweredCalls(at, len(self._sent), asked, sent)
            self._sent += (None, None)

    def _add_results(self, at: int, content: Iterable[Any]) -> None:
        for part in content:
            if isinstance(part, UnknownPart):  # in the place of a result, which answers a call
                raise self._unsupported(at, part)
            if self._batch is None:
                raise UnpairedResult(f"message {at}: {describe_unpaired(part)}")
            self._batch.results.append((at, part))

    # -- parts ----------------------------------------------------------------------------------------

    def _carried(self, at: int, parts: Iterable[Any]) -> tuple[Any, ...]:
        """The parts without what the target cannot see. Raises Unsupported."""
        kept: list[Any] = []
        for part in parts:
            match part:
                case TextPart():
                    kept.append(part)
                case UnknownPart() if self._knows(part):
                    kept.append(part)
                case ImagePart() if not self._target.vision and part.is_picture:
                    self._images += 1
                    self.left_out.append(LeftOut(at, "no_vision", part))
                case ImagePart() | AudioPart():
                    if part.media_type is not None and part.media_type not in self._target.media_types:
                        raise Unsupported(
                            f"message {at}: {self._target.name} takes no {quoted(part.media_type)}"
                        )
                    kept.append(part)
                case _:
                    raise self._unsupported(at, part)
        return tuple(kept)

    def _knows(self, part: UnknownPart) -> bool:
        """Whether the target's own provider sent the part, and so can be sent it."""
        return (
            self._target.provider is not None
            and re.match(rf"{re.escape(self._target.provider)}[.:]", part.kind) is not None
        )

    def _unwanted(self, part: ReasoningPart, calling: bool) -> Why | None:
        """Why this reasoning does not go back, or None."""
        wanted = self._target.reasoning
        if wanted == "none" or (wanted == "calls" and not calling):
            return "plain_turn"
        foreign = part.provider is not None and self._target.provider not in (None, part.provider)
        return "reasoning_form" if foreign or _form(part) not in self._target.reasoning_forms else None

    def _with_own_id(self, call: ToolCallPart) -> ToolCallPart:
        repeated = call.id in self._ids if self._target.call_ids == "unique" else False
        if self._target.call_ids == "any" or (call.id and not repeated):
            self._ids.add(call.id)
            return call
        fresh, number = call.id or "call", 1
        while fresh in self._ids:
            number += 1
            fresh = f"{call.id or 'call'}_{number}"
        self._ids.add(fresh)
        return call.model_copy(update={"id": fresh})

    def _unsupported(self, at: int, part: Any) -> Unsupported:
        return Unsupported(f"message {at}: {self._target.name} cannot carry a part of kind {part.kind!r:.60}")

    # -- calls and results ----------------------------------------------------------------------------

    def _close_batch(self) -> None:
        """Put the results of the last calls after them. Raises UnpairedResult."""
        batch, self._batch = self._batch, None
        if batch is None:
            return
        answers: list[ToolResultPart] = []
        told: list[Any] = []
        for part, sent, (at, result) in batch.paired():
            if isinstance(part, ToolCallPart):
                answer = result or part.result(MISSING, is_error=True)
            elif result is None and (batch.rescued or not part.lost_call):
                continue
            else:
                answer = result or part.result(UNREADABLE.format(part.reason))
            if isinstance(part, ToolCallPart) or self._target.orphan_results:
                answers.append(self._outgoing(at, answer, part.name or "", sent.id))
            else:
                told += [TextPart(text="\n\n")] if told else []
                told += self._carried(at, answer.parts)
        if answers:
            self._sent[batch.gap] = _sent(ToolMessage, tuple(answers))
        if told:
            self._sent[batch.gap + 1] = _sent(UserMessage, tuple(told))

    def _outgoing(self, at: int, result: ToolResultPart, name: str, call_id: str) -> ToolResultPart:
        content = result.content
        if not isinstance(content, str):
            content = self._carried(at, content)
        if result.is_error and not content:
            content = FAILED  # a model takes an empty error for success, and Anthropic refuses it
        changes = {"call_id": call_id, "name": result.name or name, "content": content}
        return result.model_copy(update={**changes, "metadata": {}, "terminate": False})


_BARE: dict[type[BaseMessage], BaseMessage] = {
    SystemMessage: SystemMessage(content=()),
    UserMessage: UserMessage(content=()),
    AssistantMessage: AssistantMessage(),
    ToolMessage: ToolMessage.from_result(ToolResultPart(call_id="", content="")),
}


def _sent(kind: type[M], content: tuple[Any, ...]) -> M:
    """A message that holds nothing but parts, which were validated when they came in."""
    bare = cast(M, _BARE[kind])  # a copy costs a third of what model_construct does
    return bare.model_copy(update={"content": content})


def _form(part: ReasoningPart) -> ReasoningForm:
    if part.opaque and part.redacted and part.signature is None:
        return "redacted"
    if part.encrypted is not None or part.redacted:
        return "encrypted"
    return "signed" if part.signature else "plain"


def _one_system(messages: Sequence[SystemMessage]) -> SystemMessage:
    """One message, with blank lines between; parts stay apart where a provider's data hang on them."""
    parts: list[Any] = list(messages[0].content)
    for message in messages[1:]:
        first, *others = cast(tuple[TextPart, ...], message.content)
        parts += (first.model_copy(update={"text": f"\n\n{first.text}"}), *others)
    if any(part.provider_metadata for part in parts):
        return _sent(SystemMessage, tuple(parts))
    return SystemMessage.text("\n\n".join(message.text for message in messages))
