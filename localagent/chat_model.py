"""What agents and the command line hold: a model that answers messages, wherever it runs.

`Model` runs on this machine, `remote.RemoteModel` on a server; whoever is given a ChatModel cannot tell.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from contextlib import aclosing
from itertools import groupby
from types import TracebackType
from typing import Any, Protocol, Self, Unpack, cast

from pydantic import BaseModel

from localagent.control import CONTROLS, Control, TurnOptions, control_of
from localagent.errors import UsageError
from localagent.hosts.protocol import CancelFlag
from localagent.hosts.sampling import Sampling, SamplingOptions
from localagent.messages import AssistantMessage, BaseMessage, Message, Prices, SystemMessage, UserMessage
from localagent.prompt.rendering import ToolSchema
from localagent.prompt.segments import Prompt
from localagent.prompt.thinking import Thinking
from localagent.turn import Done, TurnEvent, TurnInput
from localagent.wire import openai

Conversation = str | Message | Mapping[str, Any] | Sequence[Message | Mapping[str, Any]]
"""The user's words, one message or a list of messages; a dict is an OpenAI chat-completions message."""


UNKNOWN_CONTEXT = 1 << 31
"""The context of a model whose server does not tell it: more than any has, so that nothing is cut."""


class Window(Protocol):
    """What is known of where a model runs. `Host` has this and much more."""

    @property
    def name(self) -> str:
        """What the weights call themselves."""

    @property
    def context(self) -> int:
        """The tokens that a conversation and its answer may have together, or UNKNOWN_CONTEXT."""

    @property
    def lanes(self) -> int:
        """How many turns run at once; the others wait."""

    @property
    def threads(self) -> int | None:
        """CPU threads that computed last; None where that is not known."""


class ChatModel(ABC):
    """A model to be asked. Close it, or use it as a context manager, to free what it holds."""

    host: Window
    name: str
    sampling: Sampling
    """The defaults of every turn."""
    prices: Prices | None
    """Per million tokens; None for a model that costs nothing."""
    vision: bool = False
    """Whether it may be sent images."""

    @property
    def lanes(self) -> int:
        """How many turns run at once; the others wait."""
        return self.host.lanes

    def stream(
        self,
        messages: Conversation,
        *,
        system: str | None = None,
        tools: Sequence[ToolSchema] | None = None,
        cancel: CancelFlag | None = None,
        progress: bool = False,
        **options: Unpack[TurnOptions],
    ) -> Generator[TurnEvent, None, None]:
        """Run one turn: parser events as they arrive, then Done with the whole message.

        `messages`: a conversation, or the user's words. `system`: instructions placed in front of them. Parts
        that the model cannot take, such as an image, are left out, and a RequestWarning says so first.
        Setting `cancel` ends the turn at the next token, and it still ends in Done; closing the iterator
        ends it without. `options`: of `Sampling`, in place of the model's own, and of `Control`. What is
        wrong with the arguments is raised here and now, all else by the iterator; a turn that breaks off
        midway yields BrokenOff first.

        Turns overlap: any number of threads, tasks and agents may use one model, and what one gets does not
        depend on the others. As many turns run as the host has lanes and memory for; the others wait, first
        come, first served, and prompts are read one after the other. With `progress`, as far as it is known,
        `Queued` events tell the place of a turn that waits, `Prefilled` events how much of its prompt has
        been read, and `Scored` events the log-probabilities of each token, where `logprobs` asks for them.

        Raises UsageError, ContextOverflow, GrammarMissing, TemplateFailed, EngineFailed, ConstraintFailed; of
        a server also UnknownModel, ServerUnreachable, ServerRefused, StreamBroken.
        """
        return self._run(self._input(messages, system, tools, cancel, progress, options))

    def astream(
        self,
        messages: Conversation,
        *,
        system: str | None = None,
        tools: Sequence[ToolSchema] | None = None,
        cancel: CancelFlag | None = None,
        progress: bool = False,
        **options: Unpack[TurnOptions],
    ) -> AsyncGenerator[TurnEvent, None]:
        """As `stream`, on an event loop, which it never blocks. A turn on this machine holds no thread while
        it generates.

        `cancel` may be an `asyncio.Event`, and the turn then ends in Done as usual. Cancelling the task, a
        timeout, `aclose` or the end of the loop cancel the generation and free its lane, or its connection,
        and no Done comes. A loop that is left with `break` leaves the iterator to the garbage collector:
        close it, best with `contextlib.aclosing`, to free the lane at once.
        """
        return _one_by_one(self._arun(self._input(messages, system, tools, cancel, progress, options), 1))

    def agroups(
        self, messages: Conversation, *, progress: bool = False, system: str | None = None,
        tools: Sequence[ToolSchema] | None = None, **options: Unpack[TurnOptions],
    ) -> AsyncGenerator[Sequence[TurnEvent], None]:  # fmt: skip
        """The events of `astream` in groups, all that are there at a time, for a reader that passes them on
        together.
        """
        return self._arun(self._input(messages, system, tools, None, progress, options), None)

    @abstractmethod
    def _run(self, given: TurnInput) -> Generator[TurnEvent, None, None]:
        """The events of `stream`."""

    @abstractmethod
    def _arun(self, given: TurnInput, most: int | None) -> AsyncGenerator[Sequence[TurnEvent], None]:
        """The events of `agroups`, of at most so many tokens in a group."""

    def _input(
        self,
        messages: Conversation,
        system: str | None,
        tools: Sequence[ToolSchema] | None,
        cancel: CancelFlag | None,
        progress: bool,
        options: TurnOptions,
    ) -> TurnInput:
        conversation = as_conversation(messages, system)
        sampling, control = self.turn_options(options)
        control.check_tools(tools)
        return TurnInput(
            messages=conversation,
            tools=tools,
            sampling=sampling,
            control=control,
            options=options,
            cancel=cancel,
            progress=progress,
            name=self.name,
            prices=self.prices,
        )

    def respond(
        self,
        messages: Conversation,
        *,
        system: str | None = None,
        tools: Sequence[ToolSchema] | None = None,
        cancel: CancelFlag | None = None,
        **options: Unpack[TurnOptions],
    ) -> AssistantMessage:
        """Run one turn and return the whole message. Arguments and errors as for `stream`."""
        for event in self.stream(messages, system=system, tools=tools, cancel=cancel, **options):
            last = event
        assert isinstance(last, Done)
        return last.message

    async def arespond(
        self,
        messages: Conversation,
        *,
        system: str | None = None,
        tools: Sequence[ToolSchema] | None = None,
        cancel: CancelFlag | None = None,
        **options: Unpack[TurnOptions],
    ) -> AssistantMessage:
        """As `respond`, on an event loop; see `astream`."""
        async for event in self.astream(messages, system=system, tools=tools, cancel=cancel, **options):
            last = event
        assert isinstance(last, Done)
        return last.message

    @abstractmethod
    def render(
        self,
        messages: Conversation,
        *,
        system: str | None = None,
        tools: Sequence[ToolSchema] | None = None,
        limit: float = math.inf,
        thinking: Thinking = None,
        thinking_budget: int | None = None,
    ) -> Prompt:
        """The prompt that `stream` would send: its text and its ids. The model itself does not run.

        A long conversation takes time to render. With `limit`, this may stop early and raise ContextOverflow
        once there are more tokens than that.
        """

    def count_tokens(
        self,
        messages: Conversation,
        *,
        system: str | None = None,
        tools: Sequence[ToolSchema] | None = None,
        limit: int | None = None,
        thinking: Thinking = None,
        thinking_budget: int | None = None,
    ) -> int:
        """The number of prompt tokens that `stream` would send. Arguments and errors as for `render`."""
        prompt = self.render(
            messages,
            system=system,
            tools=tools,
            limit=math.inf if limit is None else limit,
            thinking=thinking,
            thinking_budget=thinking_budget,
        )
        return len(prompt.ids)

    def turn_options(self, options: TurnOptions) -> tuple[Sampling, Control]:
        """The options of a turn: the model's default sampling with some replaced, and the control.

        Raises UsageError.
        """
        given = {name: value for name, value in options.items() if name not in CONTROLS}
        return self.sampling_with(cast(SamplingOptions, given)), control_of(options)

    def sampling_with(self, options: SamplingOptions) -> Sampling:
        """The model's default sampling, with `options` replacing some of it. Raises UsageError."""
        if unknown := [name for name in options if name not in SamplingOptions.__annotations__]:
            known = ", ".join(TurnOptions.__annotations__)
            raise UsageError(f"no sampling option {unknown[0]!r:.60}; the options are {known}")
        return dataclasses.replace(self.sampling, **options)  # type: ignore[arg-type]

    @abstractmethod
    def close(self) -> None:
        """Free what it holds. Safe to call twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def as_conversation(messages: Conversation, system: str | None = None) -> list[Message]:
    """The conversation as a list of messages, with `system` in front.

    Dicts are read as OpenAI chat-completions messages; neighbouring dicts are read together, so that tool
    results find their calls. Raises UsageError for an empty prompt and for anything that is not a
    conversation; InvalidMessage and UnpairedResult are such errors.
    """
    if isinstance(messages, str):
        if not messages.strip():
            raise UsageError("the prompt is empty: say something to the model")
        messages = UserMessage(content=messages)
    if isinstance(messages, BaseModel | Mapping):
        messages = [messages]
    if not isinstance(messages, Iterable) or isinstance(messages, bytes):
        raise UsageError(f"messages must be text, a message or a list of messages, not {messages!r:.40}")
    conversation: list[Message] = [SystemMessage(content=system)] if system else []
    for are_dicts, group in groupby(messages, lambda message: isinstance(message, Mapping)):
        run = list(group)
        conversation += openai.from_wire(run, conversation) if are_dicts else map(_message, run)
    return conversation


def _message(value: Any) -> Message:
    if not isinstance(value, BaseMessage):
        raise UsageError(f"{value!r:.60} is not a message: see localagent.messages")
    return cast(Message, value)


async def _one_by_one(groups: AsyncGenerator[Sequence[TurnEvent], None]) -> AsyncGenerator[TurnEvent, None]:
    async with aclosing(groups):
        async for events in groups:
            for event in events:
                yield event
