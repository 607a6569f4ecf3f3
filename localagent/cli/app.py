"""The commands and their help. Each imports what it needs when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from localagent.cli import cache, models, sessions

app = typer.Typer(
    help="Language models on the machine in front of you, with tool calls that work.",
    epilog="Start with: localagent run 'Name three colours.'",
    no_args_is_help=True,
    rich_markup_mode=None,  # panels would cost more time than all the rest of --help
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(models.app, name="models")
app.add_typer(sessions.app, name="sessions")
app.add_typer(cache.app, name="cache")

ModelOption = Annotated[
    str | None,
    typer.Option("--model", "-m", help="A name from `localagent models list`, a GGUF file or an MLX folder."),
]
SystemOption = Annotated[
    str | None, typer.Option("--system", "-s", help="Instructions for the whole conversation.")
]
MaxTokensOption = Annotated[int | None, typer.Option(min=1, help="Stop after this many generated tokens.")]
TemperatureOption = Annotated[
    float | None, typer.Option(min=0.0, help="0 always takes the likeliest token. Default: the model's own.")
]
SeedOption = Annotated[
    int | None, typer.Option(min=0, max=2**32 - 2, help="Makes sampling repeatable. Default: a fresh one.")
]
BackendOption = Annotated[
    Literal["llamacpp", "mlx"] | None,
    typer.Option("--backend", help="The engine. Default: MLX on Apple silicon, llama.cpp elsewhere."),
]
ContextOption = Annotated[
    int | None, typer.Option(min=1, help="Context window in tokens. Default: the model's, up to 32,768.")
]
ToolsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--tools", "-t", metavar="NAME,...", help="Tools that the model may call; see `localagent tools`."
    ),
]
RootOption = Annotated[
    Path,
    typer.Option(
        "--root",
        metavar="FOLDER",
        help="What the tools for files may see. Default: here.",
        show_default=False,
    ),
]
McpOption = Annotated[
    Path | None,
    typer.Option("--mcp", metavar="FILE", help="MCP servers whose tools to use: a file with `mcpServers`."),
]
AllowOption = Annotated[
    list[str] | None,
    typer.Option("--allow", metavar="TOOL", help="Run this tool without asking; a pattern such as 'note*'."),
]
AskOption = Annotated[
    list[str] | None,
    typer.Option("--ask", metavar="TOOL", help="Ask before this tool runs, also if it changes nothing."),
]
DenyOption = Annotated[
    list[str] | None, typer.Option("--deny", metavar="TOOL", help="Never run this tool; a pattern.")
]
ThreadsOption = Annotated[int | None, typer.Option(min=1, help="CPU threads. Default: the cores there are.")]


def _version(asked: bool) -> None:
    if asked:
        from localagent.cli.terminal import show_line
        from localagent.distribution import version

        show_line(f"localagent {version() or 'of unknown version'}")
        raise typer.Exit


@app.callback()
def options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Language models on the machine in front of you, with tool calls that work."""


@app.command()
def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WORD",
            show_default=False,
            help="What to say to the model; what is piped in follows below it. - waits for the pipe.",
        ),
    ] = None,
    model: ModelOption = None,
    system: SystemOption = None,
    max_tokens: MaxTokensOption = None,
    temperature: TemperatureOption = None,
    seed: SeedOption = None,
    backend: BackendOption = None,
    context: ContextOption = None,
    threads: ThreadsOption = None,
    tools: ToolsOption = None,
    root: RootOption = Path(),
    mcp: McpOption = None,
    allow: AllowOption = None,
    ask: AskOption = None,
    deny: DenyOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the whole AssistantMessage as JSON, with usage.")
    ] = False,
    stats: Annotated[bool, typer.Option("--stats", help="Print tokens and speed on stderr.")] = False,
) -> None:
    """Ask once and print the answer as it is written.

    The prompt is the words, joined by spaces, and below them, after an empty line, all that comes through a
    pipe or from a file; without words it is that alone. A terminal is not read. A pipe that gives nothing for
    60 seconds is an error: </dev/null says that there is no input, and - as the last word waits for as long
    as it takes. Put -- before a prompt that begins with a hyphen.

    Weights that are not on this machine are fetched first. With tools the model may call them on the way to
    its answer. Tools that change something ask first; where nobody can be asked, they run only with --allow.

    \b
    Examples:
      localagent run "Name three colours."
      git diff | localagent run "Write a commit message." --temperature 0
      localagent run Summarise this: < notes.txt
      localagent run "Name three colours." --json | jq .usage
      localagent run "What is 17 * 23?" --model lfm2.5-1.2b-instruct --tools calculator
    """
    from localagent.cli.run import run_once
    from localagent.cli.tooling import ToolOptions

    run_once(
        words or (), model, system, {"max_tokens": max_tokens, "temperature": temperature, "seed": seed},
        backend=backend, context=context, threads=threads, as_json=as_json, stats=stats,
        tools=ToolOptions(tools or (), root, mcp, allow or (), ask or (), deny or ()),
    )  # fmt: skip


@app.command()
def chat(
    model: ModelOption = None,
    system: SystemOption = None,
    max_tokens: MaxTokensOption = None,
    temperature: TemperatureOption = None,
    seed: SeedOption = None,
    backend: BackendOption = None,
    context: ContextOption = None,
    threads: ThreadsOption = None,
    tools: ToolsOption = None,
    root: RootOption = Path(),
    mcp: McpOption = None,
    allow: AllowOption = None,
    ask: AskOption = None,
    deny: DenyOption = None,
    stats: Annotated[bool, typer.Option("--stats", help="Print tokens and speed after each answer.")] = False,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume", "-r", metavar="ID", help="Go on with a session; `last` is the one that changed last."
        ),
    ] = None,
    no_save: Annotated[
        bool, typer.Option("--no-save", help="Keep nothing: neither the conversation nor what you type.")
    ] = False,
) -> None:
    """Talk with a model. Ctrl-C stops an answer, /exit leaves, /help tells the rest.

    What is said is kept on this machine; see `localagent sessions`. So is what the model has read of it, so
    that going on begins at once; see `localagent cache`. What you type at the prompt can be recalled there
    later: it is kept in $LOCALAGENT_HOME/chat-history, or in the user's folder for states. With tools the
    model may call them; those that change something ask first. When the context window fills up, what was
    said first is summarised.

    \b
    Examples:
      localagent chat
      localagent chat --model lfm2.5-1.2b-instruct --system "Answer in one sentence."
      localagent chat --resume last
      localagent chat --model lfm2.5-1.2b-instruct --tools time,files,write --root ~/notes
      localagent chat --model lfm2.5-1.2b-instruct --mcp mcp.json --allow 'github_get*'
    """
    from localagent.cli.chat import Chat
    from localagent.cli.tooling import ToolOptions

    Chat.open(
        model, system, {"max_tokens": max_tokens, "temperature": temperature, "seed": seed},
        backend=backend, context=context, threads=threads, stats=stats, resume=resume, save=not no_save,
        tools=ToolOptions(tools or (), root, mcp, allow or (), ask or (), deny or ()),
    ).run()  # fmt: skip


@app.command()
def tools(
    as_json: Annotated[bool, typer.Option("--json", help="Print the tools' schemas as JSON.")] = False,
) -> None:
    """List the tools that ship, by the names for --tools.

    \b
    Examples:
      localagent tools
      localagent chat --model lfm2.5-1.2b-instruct --tools time,calculator
    """
    from localagent.cli.tools import list_tools

    list_tools(as_json=as_json)


@app.command()
def parse(
    dialect: Annotated[
        str,
        typer.Option(
            "--dialect",
            "-d",
            metavar="NAME|FILE|auto",
            help="The output format: a name from --list, a TOML file, or auto: told from the output.",
        ),
    ] = "lfm2",
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help="Read one JSON object per line, write one per line.")
    ] = False,
    list_them: Annotated[
        bool,
        typer.Option(
            "--list", help="List the dialects with their markers (JSON with --jsonl); read nothing."
        ),
    ] = False,
) -> None:
    """Parse model output from standard input.

    Without --jsonl the input is one raw output and the result a readable view. With it every line in is an
    object with `id` and one of `text`, `chunks` (strings) or `pieces` ({text, special}), and optionally
    `tools`, `inside` ("reasoning") and `finish` ("stop" or "length"); every line out has `id`, `content`,
    `reasoning`, `tool_calls`, `malformed`, `segments` and `events`, or `id` and `error`.

    With --dialect auto the output itself tells its dialect, if calls in it can be read without anything
    malformed; --jsonl names it as `dialect`. A file describes a dialect of your own: see parsers/README.md.

    \b
    Examples:
      localagent parse < output.txt
      localagent parse --dialect auto < output.txt
      localagent parse --dialect lfm2 --jsonl < outputs.jsonl > parsed.jsonl
    """
    from localagent.cli.parse import list_dialects, parse_lines, parse_text

    if list_them:
        list_dialects(as_json=jsonl)
        return
    (parse_lines if jsonl else parse_text)(dialect)


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Seconds that an engine may take to answer.")
    ] = 120,
) -> None:
    """Show what works on this machine, and how to mend what does not.

    Runs a small model on each engine, as it is and quantized, in a process of its own, and compares what it
    writes with what it must write. Looks at memory, disk, folders, models and settings. Changes
    nothing and uses no network. The exit code is 0 when an engine works, else 1.

    \b
    Examples:
      localagent doctor
      localagent doctor --json | jq -r '.findings[] | select(.status == "problem") | .fix'
    """
    from localagent.cli.doctor import examine

    examine(as_json=as_json, timeout=timeout)
