"""The llama.cpp host: GGUF weights behind the interface of `protocol.Host`.

Knows how the header, the chat template, the engine and the owner thread fit together. Contract: see
`protocol`. Any thread may call any method; generations queue up in the order of the calls.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from localagent.errors import ContextOverflow, UsageError
from localagent.hosts.gguf import Header, read_header
from localagent.hosts.llamacpp.engine import Engine, Options
from localagent.hosts.llamacpp.library import library
from localagent.hosts.owner import OwnerClosed, OwnerThread, Stream
from localagent.hosts.protocol import Finish, Prompt, Sampling, Token
from localagent.prompt import ChatTemplate

DEFAULT_CONTEXT = 32_768
T = TypeVar("T")


class LlamaCppHost:
    """One GGUF model on llama.cpp. Make it with `load`; close it, or use it as a context manager."""

    def __init__(self, owner: OwnerThread, engine: Engine, header: Header, path: Path) -> None:
        self._owner = owner
        self._engine = engine
        self._header = header
        self._name = header.name or path.stem
        self._special_tokens = frozenset(engine.vocabulary.special.values())
        self._template: ChatTemplate | None = None

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        context: int | None = None,
        threads: int | None = None,
        gpu_layers: int | None = None,
        batch: int = 512,
    ) -> LlamaCppHost:
        """Load the GGUF file at `path`.

        `context` in tokens, by default what the model was trained with, at most 32,768. `threads` by default
        the physical cores this process may use, at most `most_threads()`. `gpu_layers` by default all, where
        the build can use a GPU.
        Raises InvalidWeights, EngineMissing, UsageError, EngineFailed.
        """
        library()  # imports in the caller's thread: the first to know that the engine is missing
        file = Path(path)
        header = read_header(file)
        if batch < 1 or (gpu_layers is not None and gpu_layers < -1):
            raise UsageError("batch must be 1 or more, gpu_layers -1 (all) or more")
        options = Options(_choose_context(context, header), _choose_threads(threads), gpu_layers, batch)
        owner = OwnerThread(f"llamacpp-{file.stem}")

        def build() -> Engine:
            # Registered where it is made: an interrupt of the waiting caller loses what this returns.
            engine = Engine(file, options)
            owner.at_end(engine.close)
            return engine

        try:
            engine = owner.run(build)
        except BaseException:
            owner.close()
            raise
        return cls(owner, engine, header, file)

    @property
    def name(self) -> str:
        """The model's name as its weights give it."""
        return self._name

    @property
    def context(self) -> int:
        """Context window in tokens."""
        return self._engine.context_size

    @property
    def architecture(self) -> str:
        """llama.cpp's name of the architecture."""
        return self._header.architecture

    @property
    def special_tokens(self) -> frozenset[str]:
        """The text of every special token; `vocabulary` says which those are."""
        return self._special_tokens

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> Prompt:
        """Render with the model's own chat template and tokenize. Raises TemplateFailed."""
        rendered = self.template.render(messages, tools, **variables)
        ids = self._run(lambda: self._engine.vocabulary.tokenize_segments(rendered.segments))
        return Prompt(ids, rendered.text, rendered.inside)

    @property
    def template(self) -> ChatTemplate:
        """The model's chat template, compiled at the first use. Raises TemplateFailed."""
        if self._template is None:
            vocabulary = self._engine.vocabulary
            bos, eos = self._run(
                lambda: (vocabulary.text_of(vocabulary.bos), vocabulary.text_of(vocabulary.eos))
            )
            self._template = ChatTemplate(self._header.chat_template, bos, eos, self._special_tokens)
        return self._template

    def generate(
        self, prompt: Prompt, sampling: Sampling, cancel: threading.Event | None = None
    ) -> LlamaCppGeneration:
        """Start generating; the prefill begins at once, or when the generations before it have ended.

        Raises UsageError for an empty prompt, ContextOverflow.
        """
        engine, ids = self._engine, prompt.ids
        if not ids:
            raise UsageError("the prompt is empty: it needs at least one token")
        if len(ids) > engine.context_size:
            raise ContextOverflow(len(ids), engine.context_size)
        if not 0 <= min(ids) <= max(ids) < engine.vocabulary.size:
            raise UsageError(f"the prompt holds an id outside the vocabulary of {engine.vocabulary.size:,}")

        def start(cancelled: Callable[[], bool]) -> Generator[Token, None, Finish]:
            # Refers to the engine, not to the host: see OwnerThread.stream.
            stop = cancelled if cancel is None else lambda: cancel.is_set() or cancelled()
            return engine.generate(ids, sampling, stop)

        with _closed_is_usage():
            return LlamaCppGeneration(self._owner.stream(start))

    def tokenize(self, text: str, special: bool) -> tuple[int, ...]:
        """The ids of `text` with nothing added; control tokens are recognised only when `special`."""
        return self._run(lambda: self._engine.vocabulary.tokenize(text, special))

    def detokenize(self, ids: Sequence[int]) -> bytes:
        """The bytes that `ids` spell, special tokens included. Raises UsageError for an unknown id."""
        try:
            return self._run(lambda: self._engine.vocabulary.detokenize(ids))
        except IndexError as error:
            raise UsageError(str(error)) from error

    def close(self) -> None:
        """Cancel what runs, free the weights and end the owner thread. Safe to call twice."""
        self._owner.close()

    def __enter__(self) -> LlamaCppHost:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, function: Callable[[], T]) -> T:
        with _closed_is_usage():
            return self._owner.run(function)


class LlamaCppGeneration:
    """A running generation. Dropping it cancels it."""

    def __init__(self, stream: Stream[Token, Finish]) -> None:
        self._stream = stream

    def __iter__(self) -> LlamaCppGeneration:
        return self

    def __next__(self) -> Token:
        try:
            return next(self._stream)
        except OwnerClosed as error:
            raise _closed(error) from error

    @property
    def finish(self) -> Finish | None:
        """None while tokens may still come, and after an error."""
        return self._stream.result

    def close(self) -> None:
        """Stop early and wait until the engine has stopped. Safe to call twice and after the end."""
        self._stream.close()


@contextlib.contextmanager
def _closed_is_usage() -> Generator[None, None, None]:
    try:
        yield
    except OwnerClosed as error:
        raise _closed(error) from error


def _closed(error: OwnerClosed) -> UsageError:
    return UsageError(f"{error}: load the model again")


def _choose_context(asked: int | None, header: Header) -> int:
    trained = header.context_length
    if asked is None:
        return min(trained or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
    if asked < 1:
        raise UsageError(f"context is {asked}: it must be 1 or more")
    if trained is not None and asked > trained:
        raise UsageError(f"context is {asked:,}, and the model was trained for at most {trained:,} tokens")
    return asked


def _choose_threads(asked: int | None) -> int:
    most = most_threads()
    if asked is None:
        return min(physical_cores(), most)
    if type(asked) is not int or not 1 <= asked <= most:
        raise UsageError(f"threads is {asked!r}: it must be a whole number from 1 to {most} on this machine")
    return asked


def most_threads() -> int:
    """The most threads worth asking for. Far more abort the process (OpenMP); ggml's limit is 512."""
    return min(512, max(64, 4 * (os.cpu_count() or 1)))


def physical_cores() -> int:
    """Cores this process may run on, hyper-threads counted once; on Apple Silicon the fast ones."""
    if sys.platform == "darwin":
        return _apple_fast_cores() or os.cpu_count() or 1
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    allowed = os.sched_getaffinity(0)
    cores = set()
    for cpu in allowed:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            cores.add(siblings.read_text())
        except OSError:
            return len(allowed)
    return len(cores)


def _apple_fast_cores() -> int:
    count, size = ctypes.c_int(0), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
    call = ctypes.CDLL(None).sysctlbyname
    found = call(
        b"hw.perflevel0.physicalcpu", ctypes.byref(count), ctypes.byref(size), None, ctypes.c_size_t(0)
    )
    return count.value if found == 0 else 0
