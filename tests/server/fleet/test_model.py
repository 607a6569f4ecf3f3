"""A model as the ingress has it: what replicas are asked, what becomes of their events, and of their ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from localagent.errors import EngineFailed, UsageError
from localagent.hosts.protocol import Prefilled, Queued
from localagent.messages import AssistantMessage, UserMessage
from localagent.prompt import RequestWarning
from localagent.server.fleet.affinity import MOST_MARKS, Affinity, marks_of
from localagent.server.fleet.model import (
    ATTEMPTS,
    Call,
    Failed,
    FleetModel,
    ReplicaLost,
    Spelled,
    Window,
    answered,
)
from localagent.server.queue import Overloaded
from localagent.turn import Done
from parsers import DIALECTS, Text

pytest.importorskip("ray.serve", reason="Ray Serve is not installed")
from ray.exceptions import RayActorError, RayTaskError
from ray.serve.exceptions import BackPressureError, RayServeException, ReplicaUnavailableError

GO = [UserMessage.text("Go.")]
HI, DONE = Text("Hi", 0, 2), Done(AssistantMessage(content="Hi"), (7,))
BEFORE = (Queued(1), Prefilled(1, 2, 0), RequestWarning("thinking", "no"))


class Answer:
    """Groups of items, and an error after them; whether it was given up is noted."""

    def __init__(self, *groups: Any, error: Exception | None = None) -> None:
        self.groups, self.error, self.cancelled = groups, error, 0

    async def __aiter__(self) -> AsyncIterator[Any]:
        for group in self.groups:
            yield group
        if self.error is not None:
            raise self.error

    def cancel(self) -> None:
        self.cancelled += 1


class Handle:
    def __init__(self, *answers: Any) -> None:
        self.answers = [*answers]
        self.options_given: list[dict[str, Any]] = []
        self.asked: list[Any] = []

    def options(self, **given: Any) -> Handle:
        self.options_given.append(given)
        return self

    def remote(self, *given: Any, **named: Any) -> Any:
        self.asked.append((given, named))
        return self.answers.pop(0)


def model(*answers: Any, **fields: Any) -> tuple[FleetModel, Handle]:
    handle = Handle(*answers)
    window = Window("m", 4096, 8, "lfm2", "llama.cpp", None)
    return FleetModel(handle, "m", window, DIALECTS["lfm2"], **fields), handle  # type: ignore[arg-type]


def events(asked: FleetModel, **options: Any) -> list[Any]:
    async def all_of_them() -> list[Any]:
        return [event async for events in asked.agroups(GO, **options) for event in events]

    return asyncio.run(all_of_them())


def test_a_turn_is_given_to_a_replica_with_the_marks_of_its_conversation() -> None:
    asked, handle = model(Answer([*BEFORE, HI], [Spelled({7: b"Hi"}), DONE]), scope="key-1", raw="Once")
    tools = [{"type": "function", "function": {"name": "f"}}]
    options = {"system": "Be kind.", "tools": tools, "thinking": None, "temperature": 0}
    answer = handle.answers[0]
    assert events(asked, **options) == [*BEFORE, HI, DONE]
    assert handle.options_given == [{"method_name": "turn", "stream": True, "multiplexed_model_id": "m"}]
    ((given, named),) = handle.asked
    assert given == (Call(GO, options, "key-1", "Once"),)
    told = {"model": "m", "scope": "key-1", "raw": "Once", "system": "Be kind.", "tools": tools}
    assert named == {"marks": marks_of(told, GO)}
    assert answer.cancelled == 1
    assert asked.host.token_bytes([7, 8]) == [b"Hi", b""]


def test_a_model_for_others_and_one_that_continues_a_text_are_the_same_but_for_that() -> None:
    asked, _ = model()
    assert (asked.lanes, asked.scope, asked.raw) == (8, "", None)
    assert vars(asked.scoped("k")) == {**vars(asked), "scope": "k"}
    assert vars(asked.continuing("Once")) == {**vars(asked), "raw": "Once"}
    asked.close()


@pytest.mark.parametrize("lost", range(ATTEMPTS))
def test_a_replica_that_dies_before_it_writes_is_replaced(lost: int) -> None:
    dying = [Answer([*BEFORE], error=RayActorError()) for _ in range(lost)]
    asked, handle = model(*dying, Answer([HI, DONE]))
    assert events(asked) == [*BEFORE * lost, HI, DONE]
    assert len(handle.asked) == lost + 1
    assert [each.cancelled for each in dying] == [1] * lost


def test_a_third_replica_that_dies_and_one_that_has_written_are_errors() -> None:
    asked, handle = model(*(Answer(error=RayActorError()) for _ in range(9)))
    with pytest.raises(ReplicaLost, match=r"^the replica that was answering has ended: ask again$"):
        events(asked)
    assert len(handle.asked) == ATTEMPTS == 3
    asked, handle = model(Answer([HI], error=RayActorError()), Answer([HI]))
    with pytest.raises(ReplicaLost):
        events(asked)
    assert len(handle.asked) == 1


def test_what_a_turn_raises_there_is_raised_here() -> None:
    answer = Answer([HI, Failed(UsageError("too long"))])
    asked, handle = model(answer, Answer([HI]))
    with pytest.raises(UsageError, match=r"^too long$"):
        events(asked)
    assert (len(handle.asked), answer.cancelled) == (1, 1)


def test_who_leaves_gives_the_answer_up() -> None:
    answer = Answer([HI], [HI], [DONE])

    async def leave() -> None:
        stream = model(answer)[0].agroups(GO)
        assert await anext(stream) == (HI,)
        assert answer.cancelled == 0
        await stream.aclose()

    asyncio.run(leave())
    assert answer.cancelled == 1


def test_tokens_are_counted_by_a_replica() -> None:
    asked, handle = model(SimpleNamespace(result=lambda: 17))
    assert asked.count_tokens(GO, system="Hm.") == 17
    assert handle.options_given == [{"method_name": "count", "multiplexed_model_id": "m"}]
    assert handle.asked == [((Call(GO, {"system": "Hm."}),), {})]


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (RayTaskError("f", "Traceback: secret", KeyError("secret")), EngineFailed, "a replica failed: KeyError; its log says more"),
        (RayServeException("no"), EngineFailed, "no replica could be asked: `serve status` says why"),
        (ReplicaUnavailableError("no"), ReplicaLost, "the replica that was answering has ended: ask again"),
        (RayActorError(), ReplicaLost, "the replica that was answering has ended: ask again"),
        (BackPressureError(num_queued_requests=1, max_queued_requests=1), Overloaded, "the replicas have as many requests as they may: try again later"),
        (KeyError("x"), KeyError, "'x'"),
    ],
)  # fmt: skip
def test_what_a_client_is_told_where_ray_could_not(error: Exception, kind: type, said: str) -> None:
    def ask() -> Any:
        raise error

    with pytest.raises(kind) as caught:
        answered(ask)
    assert (type(caught.value), str(caught.value)) == (kind, said)
    if kind is not KeyError:
        assert caught.value.__cause__ is error


def test_an_answer_that_is_an_error_is_raised_and_any_other_given() -> None:
    assert answered(lambda: 5) == 5
    with pytest.raises(EngineFailed, match=r"^no$"):
        answered(lambda: Failed(EngineFailed("no")))


def test_a_million_conversations_are_remembered() -> None:
    assert Affinity[str]()._most == MOST_MARKS == 1_000_000
    affinity = Affinity[str](most=1)
    affinity.note([], "one")
    assert [*affinity.known(["a"])] == []
