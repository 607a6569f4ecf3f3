"""A model that runs on a server: `RemoteModel`, which agents and the command line take for any other.

    with RemoteModel.open("http://127.0.0.1:8080") as model:
        print(model.respond("Why is the sky blue?").text)

The server is `localagent serve`, or any other that speaks OpenAI's chat completions.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import AsyncGenerator, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from localagent.chat_model import UNKNOWN_CONTEXT, ChatModel, Conversation, as_conversation
from localagent.control import Control, TurnOptions
from localagent.errors import (
    ContextOverflow,
    ServerRefused,
    StreamBroken,
    UnknownModel,
    Unsupported,
    UsageError,
)
from localagent.hosts.protocol import Cancel, Cancelled
from localagent.hosts.sampling import Sampling, SamplingOptions
from localagent.messages import Message, Prices
from localagent.prompt import RequestWarning
from localagent.prompt.rendering import ToolSchema
from localagent.prompt.request import build_request
from localagent.prompt.segments import Prompt
from localagent.prompt.thinking import Thinking
from localagent.remote.following import followed
from localagent.remote.request import chat_body, counting_body
from localagent.remote.server import Answer, Server
from localagent.remote.turn import RemoteTurn
from localagent.settings import API_KEY
from localagent.turn import TurnEvent, TurnInput
from localagent.wire import openai

CHAT = "/v1/chat/completions"
COUNT = "/v1/messages/count_tokens"
_CONTEXTS = ("context_length", "max_model_len", "loaded_context_length", "context_window")
"""Where servers tell it: this one, vLLM, LM Studio, others."""
_IGNORED = "x-localagent-ignored"
_THINKING = ("reasoning_effort", "chat_template_kwargs", "thinking_budget_tokens", "reasoning")


@dataclass(frozen=True, slots=True)
class RemoteHost:
    """What is known of where a remote model runs."""

    name: str
    context: int = UNKNOWN_CONTEXT
    lanes: int = 1
    threads: None = None


class RemoteModel(ChatModel):
    """A model on a server that renders prompts and parses calls itself. Each turn is one request, with a
    connection of its own.

    This is a level of its own: calls are what the server took for calls. What the parser here promises, that
    nothing is lost, split or guessed, holds where the server is `localagent serve`, and nowhere else.

    The events and the message of a turn are those of a model on this machine, but for what the server does
    not tell: `raw`, the tokens' ids, and the place in its queue. Setting `cancel` closes the connection, and
    the server stops. `end_thinking` cannot be told to a server: a RequestWarning says so when it is set.
    """

    vision = True  # a server whose model sees nothing says so itself

    def __init__(
        self,
        server: Server,
        host: RemoteHost,
        sampling: SamplingOptions | None = None,
        prices: Prices | None = None,
    ) -> None:
        """`sampling`: defaults for every turn; what is not in it, the server decides. See also `open`."""
        self.server = server
        self.host: RemoteHost = host
        self.name = host.name
        self.prices = prices
        self._defaults: SamplingOptions = {**(sampling or {})}
        self.sampling = Sampling(**cast(dict[str, Any], self._defaults))
        self._counts = True

    @classmethod
    def open(
        cls,
        url: str,
        model: str | None = None,
        *,
        key: str | None = None,
        context: int | None = None,
        silence: float = 600.0,
        sampling: SamplingOptions | None = None,
        prices: Prices | None = None,
    ) -> RemoteModel:
        """The model of that name on the server at `url`; by default the first one that it serves.

        `key`: by default the one in LOCALAGENT_API_KEY. `context`: tokens that a conversation may have, if
        the server's model takes more or the server does not say. `silence`: seconds without any sign of life
        after which an answer is given up.

        Raises UsageError, UnknownModel, ServerUnreachable, ServerRefused, StreamBroken.
        """
        server = Server.at(url, key or os.environ.get(API_KEY, "").strip() or None, silence)
        try:
            served = server.models()
        except ServerRefused as error:
            if model is None or error.status in (401, 403):
                raise
            served = {}  # not every server has the list
        if model is None and not served:
            raise UnknownModel(f"{server.url} does not say which models it has: name one")
        name = model or next(iter(served))
        told = served.get(name, {})
        if name not in served and len(served) == 1 and _answers_to_any_name(served):
            told = next(iter(served.values()))
        most = [each for each in (context, _context_of(told)) if each]
        lanes = told.get("lanes")
        host = RemoteHost(
            name, min(most, default=UNKNOWN_CONTEXT), lanes if isinstance(lanes, int) and lanes > 0 else 1
        )
        return cls(server, host, sampling, prices)

    def turn_options(self, options: TurnOptions) -> tuple[Sampling, Control]:
        """As `ChatModel.turn_options`. Raises Unsupported for what a server is not asked."""
        sampling, control = super().turn_options(options)
        if control.continue_final_message:
            raise Unsupported(f"{self.server.url} is not asked to continue a message: few servers can")
        return sampling, control

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
        """Raises UsageError: only the server, which has the chat template, knows the prompt."""
        raise UsageError(f"the prompt of {self.name} is rendered by {self.server.url}, and is not known here")

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
        """The number of prompt tokens, as the server counts them; where it does not, an estimate that is
        rather too high: three characters to a token.

        Raises UsageError, ServerUnreachable, ServerRefused, StreamBroken; ContextOverflow beyond `limit`.
        """
        conversation = as_conversation(messages, system)
        count = self._counted(conversation, tools)
        if count is None:
            request = build_request(conversation, openai.TARGET)
            told = [*openai.to_wire(request.messages), *(tools or ())]
            count = math.ceil(len(json.dumps(told, ensure_ascii=False)) / 3)
        if limit is not None and count > limit:
            raise ContextOverflow(count, self.host.context)
        return count

    def _counted(self, conversation: Sequence[Message], tools: Sequence[ToolSchema] | None) -> int | None:
        """What the server counts; None if it has no such endpoint, or no words for a part of it."""
        if not self._counts:
            return None
        try:
            counted = self.server.ask(COUNT, counting_body(self.name, conversation, tools))
            tokens = counted["input_tokens"]
            return tokens if type(tokens) is int and tokens > 0 else None
        except Unsupported:
            return None
        except (ServerRefused, StreamBroken, KeyError, TypeError) as error:
            if isinstance(error, ServerRefused) and error.status not in (400, 404, 405, 422, 501):
                raise
            self._counts = False
            return None

    def close(self) -> None:
        """Nothing to free: connections last for one turn."""

    def _run(self, given: TurnInput) -> Generator[TurnEvent, None, None]:
        request = build_request(given.messages, openai.TARGET)
        yield from request.warnings
        own = {
            name: value for name, value in given.options.items() if name in SamplingOptions.__annotations__
        }
        sampling = {**self._defaults, **own}
        body = chat_body(given.name, request.messages, given.tools, sampling, given.control)
        turn = RemoteTurn(self.server, given.name, given.prices, given.tools)
        try:
            with self.server.open(CHAT, body, given.cancel) as answer:
                yield from _ignored(answer, given.name)
                ending = given.control.end_thinking
                for chunk in answer.frames() if answer.streams else (answer.json(),):
                    yield from turn.feed(chunk)
                    if ending is not None and ending.is_set():
                        ending = None
                        yield RequestWarning(
                            "thinking",
                            f"the thinking of {given.name} cannot be ended from here, since it runs on a "
                            "server: stop the answer, or wait",
                        )
            yield from turn.close()
        except Cancelled:
            yield from turn.cancelled()
        except (Exception, KeyboardInterrupt) as error:
            yield from turn.broken(error)
            raise

    def _arun(self, given: TurnInput, most: int | None) -> AsyncGenerator[Sequence[TurnEvent], None]:
        """A thread reads from the server."""
        cancel = Cancel(given.cancel)
        return followed(self._run(replace(given, cancel=cancel)), cancel)


def _answers_to_any_name(served: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether that is our own server, which answers to any name where it has one model."""
    return all(each.get("owned_by") == "localagent" for each in served.values())


def _context_of(told: Mapping[str, Any]) -> int | None:
    meta = told.get("meta")  # as llama-server has it
    given = [
        *(told.get(name) for name in _CONTEXTS),
        meta.get("n_ctx") if isinstance(meta, Mapping) else None,
    ]
    return next((each for each in given if type(each) is int and each > 0), None)


def _ignored(answer: Answer, name: str) -> Iterator[RequestWarning]:
    """What our own server says that it ignored of the request."""
    fields = [field.strip() for field in answer.header(_IGNORED).split(",") if field.strip()]
    if any(field.startswith(_THINKING) for field in fields):
        yield RequestWarning(
            "thinking", f"{name} cannot be told how to think: its chat template has no switch"
        )
    if "image" in fields:
        yield RequestWarning("images_removed", f"{name} sees no images: those of tools were left out")
    if "tool_choice" in fields:
        yield RequestWarning("tool_choice", f"{name} ignores tool_choice")
