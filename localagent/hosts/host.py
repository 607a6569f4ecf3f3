"""The `protocol.Host` for a loaded model on any engine.

It joins the chat template, the transcripts, the prefix cache, the engine and its owner thread. Any thread may
call any method; generations share the engine's lanes, and begin in the order of the calls.
"""

from __future__ import annotations

import copy
import hashlib
import os
import platform
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

from localagent.errors import EngineFailed, UsageError
from localagent.hosts.channel import Channel, EngineGeneration
from localagent.hosts.engine import Engine, Vocabulary
from localagent.hosts.generation import Cuts, GenerationState
from localagent.hosts.job import Job
from localagent.hosts.owner import OwnerThread
from localagent.hosts.prefix import PrefixCache, SnapshotFolder, SnapshotKey, Snapshots, Transcripts
from localagent.hosts.prefix.cache import DEFAULT_BUDGET
from localagent.hosts.prompting import Prompting, PromptingHost
from localagent.hosts.protocol import CancelFlag, Constraint
from localagent.hosts.sampling import Sampling
from localagent.hosts.scheduler import Scheduler
from localagent.prompt.segments import Prompt

DEFAULT_CONTEXT = 32_768
LOADED_VARIABLE = "LOCALAGENT_LOADED_NOTE"
"""Names a file in which a process notes what it loaded last, so that its parent can report a crash."""
_PART = 4096  # pieces, a few milliseconds
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Identity:
    """Facts about the loaded weights. `engine`: the engine's name and version."""

    name: str
    architecture: str
    chat_template: str | None
    engine: str
    fingerprint: Callable[[], str]
    """Computes the weights' fingerprint; called only if states are stored on disk."""
    settings: str
    """The load options that affect the engine's arithmetic."""


@dataclass(frozen=True, slots=True)
class Reuse:
    """How prefixes are reused. `budget`: bytes in memory, 0 for none at all; `snapshots`: where on disk."""

    budget: int = DEFAULT_BUDGET
    snapshots: SnapshotFolder | None = None


class EngineHost(PromptingHost):
    """One loaded model. Close it, or use it as a context manager."""

    def __init__(
        self, owner: OwnerThread, make: Callable[[], Engine], identity: Identity, reuse: Reuse | None = None
    ) -> None:
        """`make` loads the engine on the owner thread. If it fails, the owner is closed."""
        self._owner = owner
        self._identity = identity
        self._known = 0  # tokens whose pieces have been made
        self._running: weakref.WeakSet[EngineGeneration] = weakref.WeakSet()
        self._noting = threading.Lock()
        reuse = reuse or Reuse()

        def build() -> tuple[Engine, PrefixCache, Transcripts, Scheduler]:
            # Registered as they are made: if the waiting caller is interrupted, what this returns is lost.
            # Nothing here refers to `self`: whatever the owner thread holds would keep the host alive.
            engine = make()
            at_end(engine.close)
            transcripts = Transcripts(engine.vocabulary.special.values())
            stored = Snapshots(reuse.snapshots, key) if reuse.snapshots and key else None
            for turns in stored.turns() if stored else ():
                transcripts.learn(turns)
            sizes = engine.context_size, engine.capacity
            prefix = PrefixCache(
                engine.lanes, reuse.budget, stored, transcripts, *sizes,
                anywhere=engine.spacing is None, left=2 if engine.divisible else 1,
            )  # fmt: skip
            at_end(prefix.drop)
            at_end(lambda: prefix.write(goes_on))
            return engine, prefix, transcripts, Scheduler(engine, prefix, stopping, wake)

        at_end, stopping, wake, goes_on = owner.at_end, owner.stopping, owner.wake, owner.goes_on
        try:
            key = _key(identity, reuse.snapshots.owner) if reuse.snapshots and reuse.budget else None
            self._engine, self._prefix, transcripts, self._scheduler = owner.run(build)
        except BaseException:
            owner.close()
            raise
        owner.employ(self._scheduler)
        if note := os.environ.get(LOADED_VARIABLE):
            with suppress(OSError):
                Path(note).write_text(f"{identity.name} on {identity.engine}", encoding="utf-8")
        self._prompting = Prompting(
            identity.chat_template, self._engine.vocabulary, self._engine.context_size,
            transcripts if reuse.budget else None,
            owner.reading,  # in the caller's thread: a long prompt takes seconds, and streams run
        )  # fmt: skip
        self._scope = ""
        self._special_tokens = frozenset(self._engine.vocabulary.special.values())

    elsewhere = False
    takes_text = True

    @property
    def name(self) -> str:
        """The model's name as its weights give it."""
        return self._identity.name

    @property
    def context(self) -> int:
        """Context window in tokens."""
        return self._engine.context_size

    @property
    def lanes(self) -> int:
        """How many generations run at once; the others wait."""
        return len(self._engine.lanes)

    @property
    def architecture(self) -> str:
        """The engine's name of the architecture."""
        return self._identity.architecture

    @property
    def engine(self) -> str:
        """Name and version of the engine."""
        return self._identity.engine

    @property
    def alive(self) -> bool:
        """Whether the owner thread runs: else nothing is generated any more."""
        return self._owner.alive

    @property
    def busy_seconds(self) -> float:
        """How long the engine has been computing one step: much more than seconds, and it hangs."""
        return self._owner.busy_seconds

    @property
    def threads(self) -> int | None:
        """CPU threads that computed last; None where the engine does not tell."""
        return self._engine.threads

    @property
    def cache_bytes(self) -> int:
        """Memory that evaluated prompts take beside what is in the lanes. About: they change meanwhile."""
        return self._prefix.nbytes

    @property
    def special_tokens(self) -> frozenset[str]:
        """The text of every special token in the vocabulary."""
        return self._special_tokens

    @property
    def vocabulary(self) -> Vocabulary:
        """The model's vocabulary, with every piece known, so that any thread may ask for them."""
        vocabulary = self._engine.vocabulary
        while self._known < vocabulary.size:  # a part at a time, since running generations wait
            ids = range(self._known, min(self._known + _PART, vocabulary.size))
            self._owner.run(lambda ids=ids: [vocabulary.piece(token) for token in ids])  # type: ignore[misc]
            self._known = ids.stop
        return vocabulary

    def generate(
        self,
        prompt: Prompt,
        sampling: Sampling,
        cancel: CancelFlag | None = None,
        constraint: Constraint | None = None,
    ) -> EngineGeneration:
        """Start generating; the prefill begins at once, or when there is a lane for it.

        Raises UsageError for an empty prompt, ContextOverflow.
        """
        engine, ids = self._engine, prompt.ids
        self.check(prompt)
        if any(token >= engine.vocabulary.size for token, _ in sampling.logit_bias):
            raise UsageError(f"logit_bias has an id outside the vocabulary of {engine.vocabulary.size:,}")
        channel = Channel(self._owner.wake)
        size = engine.context_size
        generation = GenerationState(ids, sampling, engine.vocabulary, size, Cuts.of(engine))
        scheduler, job = self._scheduler, Job(generation, channel, cancel, constraint, self._scope)
        running = EngineGeneration(self._owner, channel, self._prompting.recorder(prompt))
        with self._noting:
            self._running.add(running)
        # Last: an interrupt before it leaves nothing behind, and one after it drops the generation.
        self._owner.post(lambda: scheduler.add(job))
        return running

    def detokenize(self, ids: Sequence[int]) -> bytes:
        """The bytes that `ids` spell, special tokens included. Raises UsageError for an unknown id."""
        piece = self._engine.vocabulary.piece
        try:
            return self._owner.run(lambda: b"".join(piece(token).data for token in ids))
        except IndexError as error:
            raise UsageError(str(error)) from error

    def token_bytes(self, ids: Sequence[int]) -> list[bytes]:
        """The bytes of each of `ids`, which a generation has given. Does not wait for the engine."""
        return [self._engine.vocabulary.piece(token).data for token in ids]

    def scoped(self, scope: str) -> EngineHost:
        """The same host, whose prompts are evaluated and reused apart from those of all other scopes.

        Closing either closes both.
        """
        view = copy.copy(self)
        view._scope = scope
        if self._prompting.transcripts is not None:
            view._prompting = copy.copy(self._prompting)
            view._prompting.transcripts = Transcripts(self._engine.vocabulary.special.values())
        return view

    def save(self) -> None:
        """Write the evaluated states to disk now, if snapshots are kept; `close` does so too."""
        self._owner.run(lambda: self._prefix.write(self._owner.goes_on))

    def abandon(self, called: str | None = None) -> None:
        """Give up an engine that hangs: whoever waits for it gets an error at once, and `alive` is False.
        `called`: the model's name in that error, by default the one in the weights.

        What it holds stays in memory, and the process cannot end by itself, until it comes back: see `hangs`.
        """
        self._owner.abandon()
        with self._noting:
            running = list(self._running)
        for generation in running:
            generation.abandon(EngineFailed(f"the engine of {called or self.name} hung and was given up"))

    @property
    def hangs(self) -> bool:
        """Whether it was abandoned and has not come back from the engine."""
        return self._owner.hangs

    def close(self) -> None:
        """Cancel running generations, free the weights and end the owner thread. Safe to call twice."""
        self._owner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _key(identity: Identity, owner: str) -> SnapshotKey:
    template = hashlib.blake2b((identity.chat_template or "").encode("utf-8", "replace"), digest_size=16)
    return SnapshotKey(
        name=identity.name,
        weights=identity.fingerprint(),
        template=template.hexdigest(),
        engine=identity.engine,
        platform=f"{platform.system()} {platform.machine()}",
        settings=identity.settings,
        owner=owner,
    )


def choose_context(asked: int | None, trained: int | None) -> int:
    """The context to load with, in tokens. Raises UsageError."""
    if asked is None:
        return min(trained or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
    if asked < 1:
        raise UsageError(f"context is {asked}: it must be 1 or more")
    if trained is not None and asked > trained:
        raise UsageError(f"context is {asked:,}, but the model was trained for at most {trained:,} tokens")
    return asked
