"""Loading a model for a command, with progress on standard error while its weights are fetched."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from localagent.cli.terminal import on_terminal, say
from localagent.errors import UsageError
from localagent.settings import URL
from localagent.wording import size_text

if TYPE_CHECKING:
    from types import TracebackType

    from rich.progress import TaskID

    from localagent.catalog import ModelSpec
    from localagent.chat_model import ChatModel
    from localagent.cli.options import ModelOptions
    from localagent.hosts.backends import BackendName
    from localagent.store import Phase

_VERBS = {"download": "downloading", "extract": "unpacking", "verify": "verifying"}


def licence_text(spec: ModelSpec) -> str:
    """The licence with its address and its main terms, on one line."""
    licence = spec.licence
    return " ".join(
        part for part in (licence.name, f"<{licence.url}>" if licence.url else None, licence.terms) if part
    )


def open_model(options: ModelOptions, *, snapshots: bool = False) -> ChatModel:
    """The model on a server, if one is named; else load it, fetching missing weights first.

    Raises LocalAgentError.
    """
    if options.server:
        return _open_remote(options, options.server)
    from localagent.cli.home import choose
    from localagent.cli.naming import default_model, resolve
    from localagent.model import load
    from localagent.remote.address import is_address

    asked, ask = options.model, choose if on_terminal() else None
    name = default_model(options.backend) if asked is None else resolve(asked, ask=ask)
    if is_address(name):
        there = load(
            name, context=options.context, backend=options.backend, threads=options.threads,
            tokenizer=options.tokenizer, dialect=options.dialect,
        )  # fmt: skip
        if name.startswith("openai"):
            say(f"({there.name}: its server parses the calls, without what this parser promises)")
        return there
    with PullReport(found := find(name, options.backend)) as report:
        return load(
            name if found is None else found.name, backend=options.backend, context=options.context,
            threads=options.threads, progress=report, snapshots=snapshots,
            tokenizer=options.tokenizer, dialect=options.dialect,
            lanes=1,  # one person asks one thing at a time: more lanes would only cost memory
        )  # fmt: skip


def _open_remote(options: ModelOptions, url: str) -> ChatModel:
    """The model on the server at `url`. `--context` bounds the conversation, whatever the server takes."""
    from localagent.remote import RemoteModel

    for name in ("backend", "threads"):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name} is for a model on this machine: leave it out, or {URL} and --url")
    for name in ("tokenizer", "dialect"):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name} means nothing to a server that parses calls itself: leave it out")
    return RemoteModel.open(url, options.model, context=options.context)


def find(name: str, backend: BackendName | None) -> ModelSpec | None:
    """The entry of a resolved name; None for a path, which is never fetched. Raises LocalAgentError.

    What is chosen from a repository of Hugging Face is told.
    """
    from localagent.catalog import HUB
    from localagent.model import locate

    found, _ = locate(name, backend)
    if isinstance(found, Path):
        return None
    if found.name.startswith(HUB) and found.name != name:
        sizes = (source.size for source in found.sources.values())
        say(f"{name}: taking {found.description} ({size_text(next(sizes))})")
    return found


class PullReport:
    """Shows a store's progress: bars on a terminal, elsewhere a line per quarter.

    `spec`: the model whose licence is shown before the first byte is fetched.
    """

    def __init__(self, spec: ModelSpec | None = None) -> None:
        self._unlicensed = spec
        self._bars = _Bars() if sys.stderr.isatty() else None
        self._said: tuple[str, int] | None = None

    def __enter__(self) -> PullReport:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars:
            self._bars.stop()

    def __call__(self, phase: Phase, done: int, total: int | None) -> None:
        if self._unlicensed and phase in ("download", "extract"):
            say(f"{self._unlicensed.name}, licence: {licence_text(self._unlicensed)}")
            self._unlicensed = None
        if phase == "wait":
            say("another process is pulling this model: waiting for it")
        elif self._bars:
            self._bars.show(phase, done, total)
        else:
            step = (phase, 4 * done // total if total else 0)
            if step != self._said:
                self._said = step
                share = f" {100 * done // total:3d} % of {size_text(total)}" if total else ""
                say(f"{_VERBS[phase]}{share}")


class _Bars:
    """One progress bar per phase, on stderr."""

    def __init__(self) -> None:
        from rich import progress
        from rich.console import Console

        self._progress = progress.Progress(
            progress.TextColumn("{task.description:>11}"),
            progress.BarColumn(),
            progress.TaskProgressColumn(),
            progress.DownloadColumn(),
            progress.TransferSpeedColumn(),
            progress.TimeRemainingColumn(),
            # The bars move the cursor, so they bypass `Output`, which would escape those codes; they show
            # fixed words only. Everything else printed meanwhile still goes through `Output`.
            console=Console(file=sys.__stderr__),
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._tasks: dict[str, TaskID] = {}

    def show(self, phase: Phase, done: int, total: int | None) -> None:
        if not self._tasks:
            self._progress.start()
        if phase not in self._tasks:
            # Bytes from an earlier pull must not count towards the speed of this one.
            self._tasks[phase] = self._progress.add_task(_VERBS[phase], total=total, completed=done)
        self._progress.update(self._tasks[phase], completed=done, total=total)

    def stop(self) -> None:
        self._progress.stop()
