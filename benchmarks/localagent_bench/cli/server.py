"""`localagent bench server`: the wire rules and the load of any server that speaks OpenAI's API."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from localagent.cli.options import grouped
from localagent.settings import API_KEY
from localagent_bench.cli.output import OutputOptions

if TYPE_CHECKING:
    from localagent_bench.results import Results
    from localagent_bench.server.load import Load
    from localagent_bench.server.target import MeasuredServer


@dataclasses.dataclass(frozen=True, slots=True)
class ServerOptions:
    """Which servers are measured, and how."""

    urls: Annotated[
        list[str] | None,
        typer.Option(
            "--url",
            metavar="URL",
            help="A server, with or without /v1; may be given again. Its key, if it wants one, is taken from "
            f"{API_KEY}.",
        ),
    ] = None
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            metavar="NAME",
            help="The model; may be given again, once for each server. Default: the first one of each.",
        ),
    ] = None
    streams: Annotated[str | None, typer.Option(metavar="N,...", help="Streams at once. Default: 1,4,8.")] = (
        None
    )
    clients: Annotated[
        str | None, typer.Option(metavar="N,...", help="Clients that ask for single tokens. Default: 1,8.")
    ] = None
    tokens: Annotated[int | None, typer.Option(min=2, help="Tokens of each stream. Default: 64.")] = None
    words: Annotated[int | None, typer.Option(min=1, help="Words of the long prompt. Default: 1,500.")] = None
    answers: Annotated[int | None, typer.Option(min=1, help="Answers of one token. Default: 100.")] = None
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds in turns. Default: 3.")] = None
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds without a sign of life after which a server is given up.")
    ] = 120.0
    checks: Annotated[bool, typer.Option("--checks/--no-checks", help="Whether the rules are checked.")] = (
        True
    )
    load: Annotated[bool, typer.Option("--load/--no-load", help="Whether the load is measured.")] = True
    quick: Annotated[
        bool, typer.Option("--quick", help="One round of a little of everything; other options go before it.")
    ] = False

    def loads(self) -> Load:
        """How much is asked. Raises UsageError."""
        from localagent_bench.server.load import Load

        load = Load()
        if self.quick:
            load = Load(streams=(1, 4), clients=(1, 4), tokens=16, words=300, answers=20, rounds=1)
        given = {name: getattr(self, name) for name in ("tokens", "words", "answers", "rounds")}
        given |= {name: _numbers(name, getattr(self, name)) for name in ("streams", "clients")}
        given["limit"] = max(self.timeout * 5, load.limit)
        return dataclasses.replace(load, **{name: each for name, each in given.items() if each is not None})


def _numbers(name: str, text: str | None) -> tuple[int, ...] | None:
    from localagent.errors import UsageError

    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part[:6]) <= 1000 and len(part) < 5 for part in parts):
        raise UsageError(f"--{name} {text!r:.40}: give numbers from 1 to 1,000, such as 1,4,8")
    return tuple(dict.fromkeys(map(int, parts)))


@grouped
def server(options: ServerOptions, output: OutputOptions) -> None:
    """Check and measure any server that speaks OpenAI's chat completions.

    First the rules of the wire: models, streams, usage, tool calls, options, errors. Each of them passes or
    fails, is not offered, or was not seen, with what came. Then the load: streams at once with their tokens
    per second, first token and longest gap; a long prompt that arrives while others are written; answers of
    one token. Several servers take turns, and stand side by side with ratios to the first.

    A server that is none, hangs or dies is named with the reason, and the others go on. The client runs on
    this machine: measure a server from another one if that is to cost it nothing.

    \b
    Examples:
      localagent bench server --url http://127.0.0.1:8080
      localagent bench server --url http://127.0.0.1:8080 --quick --html report.html
      localagent bench server --url http://127.0.0.1:8080 --url http://127.0.0.1:8000 --out results.jsonl
      localagent bench server --url https://example.com --model some-model --no-load
    """
    from localagent.cli.terminal import say
    from localagent.errors import ServerFailed, UsageError
    from localagent_bench.cli.output import recording
    from localagent_bench.server.checking import check_servers
    from localagent_bench.server.loading import load_servers
    from localagent_bench.server.target import describe, pair

    if not options.urls:
        raise UsageError("no server is named: give --url, such as --url http://127.0.0.1:8080")
    pairs, load = pair(options.urls, options.models or ()), options.loads()
    asked = {
        "urls": options.urls,
        **{name: value for name, value in dataclasses.asdict(load).items() if name != "limit"},
        "timeout": options.timeout,
        "checks": options.checks,
        "load": options.load,
    }
    with recording("server", asked, output) as results:
        targets = _targets(results, pairs, options.timeout)
        if not targets:
            raise ServerFailed("no server can be measured: the reasons stand above")
        describe(results, targets)
        if options.checks:
            targets = check_servers(results, targets, options.timeout, say)
        if options.load:
            load_servers(results, targets, load, say)


def _targets(results: Results, pairs: list[tuple[str, str | None]], timeout: float) -> list[MeasuredServer]:
    """The servers that answer; the others are skipped."""
    from localagent.errors import LocalAgentError
    from localagent_bench.server.target import MeasuredServer

    found: list[MeasuredServer] = []
    for url, model in pairs:
        try:
            target = MeasuredServer.at(url, model, timeout)
        except LocalAgentError as error:
            results.skip(url, str(error))
            continue
        if any(each.name == target.name for each in found):  # tables tell servers apart by these
            results.skip(url, f"it is the same server as {target.name}, named before")
        else:
            found.append(target)
    return found
