"""A model as the ingress has it: turns are run by a replica, and their events come from there in groups."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from localagent.errors import EngineFailed, LocalAgentError
from localagent.hosts.protocol import NoEngine, Prefilled, Queued
from localagent.messages import Message
from localagent.parsers import Dialect
from localagent.prompt import RequestWarning
from localagent.prompt.segments import Raw
from localagent.server.fleet.affinity import marks_of
from localagent.server.queue import Overloaded
from localagent.turn import TurnEvent

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle

ATTEMPTS = 3
"""How often a request is given to a replica at most, while nothing has come of it."""
_BEFORE = (Queued, Prefilled, RequestWarning)
"""Events that come before anything is written."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request to a replica. `options`: of `Model.agroups`. `raw`: in place of messages.

    `scope`: clients who share their evaluated prompts; see `EngineHost.scoped`.
    """

    messages: Sequence[Message]
    options: Mapping[str, Any]
    scope: str = ""
    raw: Raw | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """In place of an event: the turn ends with this error. Ray would wrap it, and lose its type."""

    error: LocalAgentError


@dataclass(frozen=True, slots=True)
class Spelled:
    """Before `Scored`, whose log-probabilities name ids: the bytes of each."""

    bytes: Mapping[int, bytes]


Item = TurnEvent | Failed | Spelled
"""What a replica sends, in lists."""


@dataclass(frozen=True, slots=True)
class Window(NoEngine):
    """What is known of a model that replicas have loaded. `lanes`: answers at once, of all replicas that
    there may be together.
    """

    name: str
    context: int
    lanes: int
    architecture: str
    engine: str
    template_source: str | None
    pieces: dict[int, bytes] = field(default_factory=dict)
    """The bytes of tokens that answers have named; no more of them than the vocabulary has."""

    def token_bytes(self, ids: Sequence[int]) -> list[bytes]:
        """The bytes of tokens whose log-probabilities have come."""
        return [self.pieces.get(token, b"") for token in ids]


@dataclass
class FleetModel:
    """Stands in `ModelPool` where there would be a `Model`."""

    handle: DeploymentHandle[Any]
    name: str
    host: Window
    dialect: Dialect
    scope: str = ""
    raw: Raw | None = None

    @property
    def lanes(self) -> int:
        """How many turns run at once; the others wait."""
        return self.host.lanes

    def scoped(self, scope: str) -> FleetModel:
        """The model for clients who share their evaluated prompts with nobody else."""
        return dataclasses.replace(self, scope=scope)

    def continuing(self, raw: Raw) -> FleetModel:
        """The model for turns that continue this."""
        return dataclasses.replace(self, raw=raw)

    async def agroups(
        self, messages: Sequence[Message], **options: Any
    ) -> AsyncGenerator[Sequence[TurnEvent], None]:
        """The events of a turn in groups. While nothing has come, a replica that dies is replaced by another.

        Raises EngineFailed, Overloaded, and what the turn raises there.
        """
        call = Call(messages, options, self.scope, self.raw)
        marks = await asyncio.to_thread(marks_of, self._told(options), messages)
        ask = self.handle.options(method_name="turn", stream=True, multiplexed_model_id=self.name)
        for attempt in range(1, ATTEMPTS + 1):
            written = False
            try:
                async with aclosing(_taken(ask.remote(call, marks=marks))) as items:
                    async for item in items:
                        match item:
                            case Failed():
                                raise item.error
                            case Spelled():
                                self.host.pieces.update(item.bytes)
                                continue
                        written = written or not isinstance(item, _BEFORE)
                        yield (item,)
                return
            except ReplicaLost:
                if written or attempt == ATTEMPTS:
                    raise

    def count_tokens(self, messages: Sequence[Message], **told: Any) -> int:
        """The tokens of a prompt, counted by a replica. Not to be called on an event loop.

        Raises what `agroups` raises.
        """
        ask = self.handle.options(method_name="count", multiplexed_model_id=self.name)
        return int(answered(ask.remote(Call(messages, told)).result))

    def close(self) -> None:
        """Nothing: replicas unload what is used least when another model needs its place."""

    def _told(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """What the prompt depends on, beside the messages."""
        names = ("system", "tools", "thinking")
        return {"model": self.name, "scope": self.scope, "raw": self.raw} | {
            name: options[name] for name in names if options.get(name) is not None
        }


class ReplicaLost(EngineFailed):
    """The replica that ran a turn has ended, or cannot be reached."""


async def _taken(answer: Any) -> AsyncGenerator[Item, None]:
    """The items of an answer, which is cancelled if they are not taken to the end."""
    groups: AsyncIterable[Sequence[Item]] = answer
    try:
        async for group in groups:
            for item in group:
                yield item
    except Exception as error:
        raise _told_by_ray(error) from error
    finally:
        answer.cancel()  # nothing, if it has ended


def answered(ask: Callable[[], Any]) -> Any:
    """What a replica answers, waited for. Raises LocalAgentError: those of the replica, and of the way."""
    try:
        answer = ask()
    except Exception as error:
        raise _told_by_ray(error) from error
    if isinstance(answer, Failed):
        raise answer.error
    return answer


def _told_by_ray(error: Exception) -> Exception:
    """What a client is told, where Ray could not do what it was asked for."""
    from ray.exceptions import RayError, RayTaskError
    from ray.serve.exceptions import BackPressureError, RayServeException, ReplicaUnavailableError

    if isinstance(error, BackPressureError):
        return Overloaded("the replicas have as many requests as they may: try again later")
    if isinstance(error, RayTaskError):  # a fault of ours; Ray's text has all of the traceback
        return EngineFailed(f"a replica failed: {type(error.cause).__name__}; its log says more")
    if isinstance(error, RayServeException) and not isinstance(error, ReplicaUnavailableError):
        return EngineFailed("no replica could be asked: `serve status` says why")
    if isinstance(
        error, RayServeException | RayError
    ):  # it, its worker, its machine, or what it sent is gone
        return ReplicaLost("the replica that was answering has ended: ask again")
    return error
