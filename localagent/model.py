"""Loading a model, and running turns with it.

`load` finds the weights or the server, the engine and the dialect that the model writes; `Model` runs turns.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from localagent.chat_model import ChatModel, Conversation, as_conversation
from localagent.detection import asked_dialect, declared_in, detect_dialect, require_markers
from localagent.errors import UnknownModel, UsageError
from localagent.hosts.prefix.cache import DEFAULT_BUDGET
from localagent.hosts.protocol import Host
from localagent.hosts.sampling import Sampling
from localagent.messages import Prices
from localagent.parsers import Dialect
from localagent.prompt.rendering import ToolSchema, render_turn, request_for, thinking_for
from localagent.prompt.segments import Prompt
from localagent.prompt.thinking import Thinking
from localagent.remote.address import Address, is_address, read_address
from localagent.turn import LocalTurn, TurnEvent, TurnInput
from localagent.wording import quoted

if TYPE_CHECKING:
    from localagent.catalog import ModelSpec
    from localagent.hosts.backends import BackendName
    from localagent.hosts.host import EngineHost
    from localagent.hosts.prefix import SnapshotFolder
    from localagent.remote import RemoteModel
    from localagent.remote.tokens.host import TokenHost
    from localagent.store import Progress

__all__ = ["Conversation", "Model", "as_conversation", "load", "load_served", "load_weights", "locate"]


class Model(ChatModel):
    """A host, the dialect that its model writes, and the default sampling.

    Close it, or use it as a context manager, to free the weights.
    """

    def __init__(
        self,
        host: Host,
        dialect: Dialect,
        sampling: Sampling | None = None,
        name: str | None = None,
        prices: Prices | None = None,
    ) -> None:
        """`sampling`: defaults for every turn. `name`: by default the name in the weights.

        `prices`: per million tokens; None for a model that costs nothing.
        """
        self.host: Host = host
        self.dialect = dialect
        self.sampling = sampling or Sampling()
        self.name = name or host.name
        self.prices = prices

    def _run(self, given: TurnInput) -> Generator[TurnEvent, None, None]:
        turn = LocalTurn(self.host, self.dialect, given)
        yield from turn.warnings
        generation = self.host.generate(turn.prompt, given.sampling, given.cancel, turn.guide)
        try:
            for step in generation.steps():
                yield from turn.feed(step)
            yield from turn.close(generation.finish)
        except (Exception, KeyboardInterrupt) as error:
            yield from turn.broken(error)
            raise
        finally:
            generation.close()

    async def _arun(self, given: TurnInput, most: int | None) -> AsyncGenerator[Sequence[TurnEvent], None]:
        """The request is rendered in a thread, but none waits while the model generates."""
        import asyncio  # here, so that programs without an event loop do not load it

        turn = await asyncio.to_thread(LocalTurn, self.host, self.dialect, given)
        yield turn.warnings
        generation = self.host.generate(turn.prompt, given.sampling, given.cancel, turn.guide)
        # Closing frees the lane; without `aclosing`, that would be left to the garbage collector.
        async with aclosing(generation.asteps(most)) as groups:
            try:
                async for steps in groups:
                    yield [event for step in steps for event in turn.feed(step)]
                yield turn.close(generation.finish)
            except (Exception, KeyboardInterrupt) as error:
                yield turn.broken(error)
                raise

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
        """As `ChatModel.render`. Raises UsageError, TemplateFailed, ContextOverflow."""
        request = request_for(self.host, as_conversation(messages, system), self.name)
        plan = thinking_for(self.host, self.dialect, request, tools, thinking, thinking_budget)
        return render_turn(self.host, self.dialect, request, tools, limit, plan.switch, self.name)

    def scoped(self, scope: str) -> Model:
        """The same model for users whose evaluated prompts nobody else is to reuse; "" is everybody.

        Closing either closes both.
        """
        host = self.host.scoped(scope) if scope else self.host
        if host is self.host:  # one elsewhere keeps no evaluated prompts
            return self
        return Model(host, self.dialect, self.sampling, self.name, self.prices)

    def close(self) -> None:
        """Free the weights. Safe to call twice."""
        self.host.close()


def load(
    model: str | Path | None = None,
    *,
    backend: BackendName | None = None,
    dialect: str | Path | None = None,
    context: int | None = None,
    threads: int | None = None,
    offline: bool | None = None,
    progress: Progress | None = None,
    prefix_cache: int | None = None,
    snapshots: bool | Path | SnapshotFolder = False,
    lanes: int | None = None,
    exact: bool = False,
    tokenizer: str | Path | None = None,
) -> Model | RemoteModel:
    """Load a model: a name in the catalogue, a GGUF file or an MLX folder; None is the catalogue's default.
    `hf:owner/name[:file or quantization]` is a repository of Hugging Face; see `store.repository`.

    Missing weights are fetched first, unless `offline` (None: as the environment says), and `progress` is
    called meanwhile. `backend`: by default MLX on Apple silicon and llama.cpp elsewhere, if the model has
    weights for it. `dialect`: a name, or a TOML file that describes one; by default the catalogue's. With
    "auto", or without an entry in the catalogue, the weights decide (`detection.detect_dialect`).
    `context`: tokens. `threads`: CPU threads of llama.cpp, by default one per core, and fewer beside busy
    programs.

    A model on a server is named by its address: `vllm://host:8000/model`, `sglang://`, `llama-server://`,
    with `+https` where the connection is to be secured otherwise than usual. Tokens are drawn there, and all
    else is done here. `tokenizer`: where the model's tokenizer is, a folder, a GGUF file or a repository of
    Hugging Face; by default where the server says that it has it from. Other options than `dialect` and
    `context` are for models on this machine.

    `openai://host/model` is a model behind OpenAI's API, and gives a `RemoteModel`, as `RemoteModel.open`
    does: its server renders prompts and parses calls, without what this parser promises, and `context` is
    the only option. Every other name gives a `Model`.

    `lanes`: how many generations run at once, each with room for a whole context. By default up to 8, as
    memory allows (see `hosts.memory.default_lanes`), or 1 where the model cannot be batched.

    `exact`: with quantized weights on llama.cpp, logits that do not depend on how a prompt was cut, nor on
    how many threads compute, at the cost of speed: see `hosts.llamacpp.prefill`. With other weights they do
    not in any case.

    The evaluated prompt is kept for the next turn. `prefix_cache` limits the bytes of memory for
    conversations other than the current one (None: 512 MB; 0 keeps nothing at all). `snapshots` also keeps
    evaluated prompts on disk for later processes, in the user's cache folder or in a folder of your own;
    anyone who can read those files can read the conversations.

    Raises UnknownModel, UnknownDialect, DialectMismatch, ModelMissing, DownloadFailed, InvalidWeights,
    NotEnoughMemory, CannotBatch, EngineMissing, EngineBroken, UsageError; of a server also
    ServerUnreachable, ServerRefused and StreamBroken.
    """
    if not (isinstance(model, str) and is_address(model)):
        if tokenizer is not None:
            raise UsageError("tokenizer is for a model on a server: weights on this machine have their own")
        return load_weights(
            model, backend=backend, dialect=dialect, context=context, threads=threads, offline=offline,
            progress=progress, prefix_cache=prefix_cache, snapshots=snapshots, lanes=lanes,
            exact=exact,
        )  # fmt: skip
    here = {
        "backend": backend, "threads": threads, "prefix_cache": prefix_cache, "lanes": lanes,
        "snapshots": snapshots or None, "exact": exact or None,
    }  # fmt: skip
    address = read_address(model)
    if address.kind != "openai":
        _leave_out(here, f"is an option of models on this machine: leave it out for {quoted(model)}")
        return load_served(address, dialect, context, tokenizer)
    from localagent.remote import RemoteModel

    why = f"means nothing to {address.url}, which renders and parses itself: leave it out"
    _leave_out({**here, "dialect": dialect, "tokenizer": tokenizer}, why)
    return RemoteModel.open(address.url, address.model, context=context)


def _leave_out(options: Mapping[str, object], why: str) -> None:
    if given := next((name for name, value in options.items() if value is not None), None):
        raise UsageError(f"{given} {why}")


def load_served(
    address: Address, dialect: str | Path | None, context: int | None, tokenizer: str | Path | None = None
) -> Model:
    """As `load`, for a model on a server that draws tokens, which is any kind but `openai`."""
    from localagent.remote.tokens.opening import open_host

    named = asked_dialect(dialect)
    host = open_host(address, tokenizer=tokenizer, context=context)
    return Model(host, _dialect_of(host, named, host.name))


def load_weights(
    model: str | Path | None = None,
    *,
    backend: BackendName | None = None,
    dialect: str | Path | None = None,
    context: int | None = None,
    threads: int | None = None,
    offline: bool | None = None,
    progress: Progress | None = None,
    prefix_cache: int | None = None,
    snapshots: bool | Path | SnapshotFolder = False,
    lanes: int | None = None,
    exact: bool = False,
) -> Model:
    """As `load`, for a model on this machine."""
    from localagent.engines.check import require_engine
    from localagent.hosts.backends import BACKENDS
    from localagent.hosts.host import Reuse
    from localagent.hosts.memory import check_lanes
    from localagent.store import WeightStore

    check_lanes(lanes)
    entry, engine = locate(model, backend, offline=offline)
    spec = None if isinstance(entry, Path) else entry
    named = asked_dialect(spec.dialect if dialect is None and spec is not None else dialect)
    require_engine(engine)  # in a child first: a crash in this process would end it without a word
    path = entry if isinstance(entry, Path) else WeightStore().pull(entry, engine, progress, offline=offline)
    budget = DEFAULT_BUDGET if prefix_cache is None else prefix_cache
    if type(budget) is not int or budget < 0:
        raise UsageError(f"prefix_cache is {prefix_cache!r}: it must be bytes, 0 or more")
    name = spec.name if spec is not None else path.name.removesuffix(".gguf")  # not by its makers' title
    reuse = Reuse(budget, _folder(snapshots))
    host = (
        BACKENDS[engine]
        .host()
        .load(path, context=context, threads=threads, lanes=lanes, exact=exact, reuse=reuse, called=name)
    )
    try:
        written = _dialect_of(host, named, name, path)
        if spec is None:
            return Model(host, written)
        return Model(host, written, spec.sampling.to_sampling(), spec.name, spec.prices)
    except BaseException:
        host.close()
        raise


def _dialect_of(
    host: EngineHost | TokenHost, named: Dialect | None, name: str, path: Path | None = None
) -> Dialect:
    """`named`, which the model called `name` must be able to write; without it, what the weights tell."""
    if named is not None:
        require_markers(named, host.special_tokens, name, host.template_source)
        return named
    declared = None if path is None else declared_in(path)
    return detect_dialect(host.special_tokens, host.architecture, host.template_source, declared)


def _folder(snapshots: bool | Path | SnapshotFolder | None) -> SnapshotFolder | None:
    from localagent.hosts.prefix import SnapshotFolder

    if isinstance(snapshots, SnapshotFolder):
        return snapshots
    if isinstance(snapshots, bool) or snapshots is None:
        return SnapshotFolder() if snapshots else None
    try:
        folder = Path(snapshots).expanduser().absolute()
        with suppress(FileNotFoundError, NotADirectoryError):
            folder.stat()  # raises for text that cannot be a path, such as one with a NUL
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        raise UsageError(f"snapshots is {str(snapshots)[:80]!r}, which is not a folder: {error}") from error
    return SnapshotFolder(folder)


def locate(
    model: str | Path | None, backend: BackendName | None, *, offline: bool | None = None
) -> tuple[ModelSpec | Path, BackendName]:
    """The catalogue entry, or the path of weights that are not in it, and the backend.

    A repository of Hugging Face gets an entry of its own; unless its weights are here, it is asked for its
    files.
    """
    from localagent.catalog import HUB, load_catalog
    from localagent.hosts.backends import BACKENDS

    if backend is not None and backend not in BACKENDS:
        raise UsageError(f"no backend {backend!r}: choose {' or '.join(BACKENDS)}")
    catalog = load_catalog()
    if model is None:
        spec = catalog.default_for(backend)
    elif isinstance(model, str) and model in catalog:
        spec = catalog.get(model)
    elif is_address(model):
        raise UsageError(f"{quoted(str(model))} is on a server: this takes a model on this machine")
    elif isinstance(model, str) and model.startswith(HUB):
        from localagent.store.repository import find_model

        return find_model(model, backend, offline=offline)
    elif (path := _existing(model)) is not None:
        return path, _backend_of(path, backend)
    elif isinstance(model, Path) or model.endswith(".gguf"):
        raise UnknownModel(f"no such file: {model}")
    elif not model.strip():
        raise UnknownModel("the model name is empty: `localagent models list --all` shows all models")
    elif "/" in model:
        raise UnknownModel(
            f"no such file or folder: {quoted(model)}: a repository of Hugging Face is {HUB}owner/name"
        )
    else:
        spec = catalog.get(model)
    return spec, backend or spec.preferred_backend()


def _backend_of(path: Path, asked: BackendName | None) -> BackendName:
    """The backend that loads the file or folder at `path`. Raises UsageError if another was asked for."""
    from localagent.hosts.backends import BACKENDS, backend_for

    usual = backend_for(path)
    if asked is None or BACKENDS[asked].takes(path):
        return asked or usual.name
    kind = "folder" if path.is_dir() else "file"
    raise UsageError(f"backend is {asked!r}, but {path} is a {kind}, which {usual.title} loads")


def _existing(model: str | Path) -> Path | None:
    """The path, if `model` is an existing one."""
    try:
        path = Path(model).expanduser()
        return path if str(model).strip() and path.exists() else None
    except (OSError, RuntimeError, ValueError):  # too long, no such user, a NUL in it
        return None
