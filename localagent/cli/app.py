"""The commands and their help. Each imports what it needs when it runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from localagent.cli import cache, models, sessions
from localagent.cli.completing import client_names, dialect_names, model_names, session_names
from localagent.cli.home import greet, help_alone
from localagent.cli.options import (
    AnswerOptions,
    Files,
    ModelOptions,
    RunOptions,
    ServeOptions,
    ToolOptions,
    grouped,
)
from localagent.cli.plugins import Bench

app = typer.Typer(
    help="Language models on the machine in front of you, with tool calls that work.",
    epilog="Start with: localagent run 'Name three colours.'",
    rich_markup_mode=None,  # drawing panels takes longer than everything else in --help
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(models.app, name="models")
app.add_typer(sessions.app, name="sessions")
app.add_typer(cache.app, name="cache")
app.add_typer(
    typer.Typer(
        cls=Bench,
        help="Measure parsers of tool calls, models on this machine, and servers.",
        callback=help_alone,
        invoke_without_command=True,
    ),
    name="bench",
)


def _version(asked: bool) -> None:
    if asked:
        from localagent.cli.terminal import show_line
        from localagent.distribution import version

        show_line(f"localagent {version() or 'of unknown version'}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Language models on the machine in front of you, with tool calls that work."""
    greet(context)


@app.command()
@grouped
def run(
    options: ModelOptions,
    tools: ToolOptions,
    answer: AnswerOptions,
    how: RunOptions,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WORD",
            show_default=False,
            help="The prompt; text from a pipe is added below it. - as the last word waits for the pipe. "
            "A first word that is the name of a model is the model.",
            autocompletion=model_names,
        ),
    ] = None,
    files: Files = None,
) -> None:
    """Ask once and print the answer as it is written.

    The prompt is the words, joined by spaces. Text from a pipe or a file follows them after an empty line; it
    may also be the whole prompt. A terminal is not read. A pipe that sends nothing for 60 seconds is an
    error: use </dev/null if there is no input, or - as the last word to wait as long as it takes. Put --
    before a prompt that begins with a hyphen.

    Missing weights are fetched first. With --tools the model may call tools before it answers. Tools that
    change something ask first; where nobody can answer, they run only with --allow.

    On a terminal the conversation is saved, as `chat` does, and -c goes on with it; in a pipe it is not. With
    --url a server answers, and nothing is loaded here.

    \b
    Examples:
      localagent run "Name three colours."
      localagent run -c "Three more."
      localagent run "Name three colours." --url http://127.0.0.1:8080
      localagent run lfm2.5-1.2b-instruct "Name three colours."
      git diff | localagent run "Write a commit message." --temperature 0
      localagent run Summarise this: < notes.txt
      localagent run "What do these have in common?" -f one.txt -f two.txt
      localagent run "Name three colours." --json | jq .usage
      localagent run "Name three colours." --events | jq 'select(.event == "text") | .text'
      localagent run "What is 17 * 23?" --model lfm2.5-1.2b-instruct --tools calculator
      localagent run "Book a table for two." --tool booking:book --tool-choice required
      localagent run "Who wrote Emma, and when?" --schema book.json | jq .year
    """
    from localagent.cli.naming import model_and_words
    from localagent.cli.run import run_once

    model, prompt = model_and_words(options.model, words or ())
    options = replace(options, model=model)
    run_once(prompt, options, tools, answer, how, files or ())


@app.command()
@grouped
def chat(
    options: ModelOptions,
    tools: ToolOptions,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            show_default=False,
            help="The same as --model.",
            autocompletion=model_names,
        ),
    ] = None,
    files: Files = None,
    stats: Annotated[bool, typer.Option("--stats", help="Print tokens and speed after each answer.")] = False,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume",
            "-r",
            metavar="ID",
            help="Continue a session; `last` is the one changed last.",
            autocompletion=session_names,
        ),
    ] = None,
    no_save: Annotated[
        bool, typer.Option("--no-save", help="Save nothing: neither the conversation nor what you type.")
    ] = False,
) -> None:
    """Talk with a model. Ctrl-C stops an answer, /exit leaves, /help lists all commands.

    The conversation is saved on this machine; see `localagent sessions`. So is the evaluated prompt, so that
    a resumed chat need not be read again; see `localagent cache`. What you type is saved too, in
    $LOCALAGENT_HOME/chat-history or in your user folder for state, and the arrow keys bring it back. With
    --tools the model may call tools; those that change something ask first. When the context window fills
    up, the oldest part of the conversation is summarised.

    A resumed chat has the model, the options and the tools that it had, and options given now go before
    them; only --allow is not kept. @notes.txt in a message puts that file into it.

    \b
    Examples:
      localagent chat
      localagent chat lfm2.5-1.2b-instruct --system "Answer in one sentence."
      localagent chat --resume last
      localagent chat --url http://127.0.0.1:8080
      localagent chat --role reviewer --file main.py
      localagent chat --model lfm2.5-1.2b-instruct --tools time,files,write --root ~/notes
      localagent chat --model lfm2.5-1.2b-instruct --mcp mcp.json --allow 'github_get*'
    """
    from localagent.cli.home import offer
    from localagent.cli.roles import with_role
    from localagent.cli.talk.chat import Chat
    from localagent.errors import UsageError

    if name is not None:
        if options.model is not None:
            raise UsageError(f"{name} and --model {options.model} both name the model: leave one out")
        options = replace(options, model=name)
    options, tools = with_role(options, tools)
    if resume is None:
        options = offer(options)
    Chat.open(options, tools, stats=stats, resume=resume, save=not no_save, files=files or ()).run()


@app.command()
def tools(
    as_json: Annotated[bool, typer.Option("--json", help="Print the tools' schemas as JSON.")] = False,
) -> None:
    """List the tools that --tools takes.

    \b
    Examples:
      localagent tools
      localagent chat --model lfm2.5-1.2b-instruct --tools time,calculator
    """
    from localagent.cli.tools import list_tools

    list_tools(as_json=as_json)


@app.command()
@grouped
def serve(options: ServeOptions) -> None:
    """Serve models over HTTP to other programs.

    Clients of OpenAI, Anthropic and Ollama can use them. The first model is loaded at once, the others when
    they are asked for. A model that nobody uses makes room for another one. With one model, that answers
    whatever name a client asks for; with several, an unknown name is an error, unless an --alias says
    which is meant.

    Only programs on this machine can connect, unless --host says otherwise, and then a key is needed: in the
    file of --api-key-file, one a line, or in LOCALAGENT_API_KEYS, separated by commas. Pages in a browser,
    in a desktop program or in an extension are refused, unless their --origin is named, and so are requests
    to a host name other than localhost, unless --allow-host names it. What is said is not logged, unless
    --log-prompts asks for it.

    Evaluated prompts are kept on disk for the next start; see `localagent cache`. Clients with different keys
    do not reuse each other's prompts, unless --share-prefixes allows it; what they say is not kept on disk.

    With --ray the models run in replicas, each a process with weights of its own, on this machine or on a
    cluster of Ray. A conversation goes back to the replica that has read it, and a replica that dies is
    replaced. Nothing is kept on disk then.

    \b
    Examples:
      localagent serve
      localagent serve --model lfm2.5-1.2b-instruct --port 11434
      localagent serve --model lfm2.5-1.2b-instruct --model lfm2-nano --alias 'claude-*=lfm2.5-1.2b-instruct'
      localagent serve --host 0.0.0.0 --api-key-file ~/keys --origin http://localhost:3000 --metrics
      localagent serve --model vllm://gpu-box:8000/model --model lfm2-nano
      localagent serve --ray --replicas 1:2
      localagent serve --ray --replicas 2:8 --gpus 1 --print-config > fleet.yaml
    """
    from localagent.cli.fleet import refuse_without_ray, serve_fleet
    from localagent.cli.serve import serve as serve_models

    if options.ray:
        serve_fleet(options)
    else:
        refuse_without_ray(options)
        serve_models(options)


@app.command()
def parse(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE", show_default=False, help="What to read. Default, and -: standard input."
        ),
    ] = None,
    dialect: Annotated[
        str | None,
        typer.Option(
            "--dialect",
            "-d",
            metavar="NAME|FILE|auto",
            help="The output format: a name or an alias from --list, a TOML file, or auto to detect it. "
            "Default: lfm2.",
            autocompletion=dialect_names,
        ),
    ] = None,
    dialect_from: Annotated[
        Path | None,
        typer.Option(
            "--dialect-from",
            metavar="FILE|FOLDER",
            help="The format that a model declares as response_template in its tokenizer_config.json.",
        ),
    ] = None,
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help="Read one JSON object per line, write one per line.")
    ] = False,
    list_them: Annotated[
        bool,
        typer.Option(
            "--list",
            help="List the dialects with their markers and aliases (JSON with --jsonl); read nothing.",
        ),
    ] = False,
) -> None:
    """Parse model output, from a file or standard input.

    Without --jsonl the input is one raw output, and the result is printed for people. With --jsonl each input
    line is an object with `id` and one of `text`, `chunks` (strings) or `pieces` ({text, special}), and
    optionally `tools`, `inside` ("reasoning"), `finish` ("stop" or "length") and `dialect`. Each output line
    has `id`, `content`, `reasoning`, `tool_calls`, `malformed`, `segments` and `events`, or `id` and `error`.

    --dialect auto finds the dialect in which the output has calls and nothing malformed; with --jsonl the
    answer names it as `dialect`. Without --jsonl an output that no dialect reads like that is shown as the
    nearest one reads it. A TOML file describes a dialect of your own: see parsers/README.md.
    --dialect-from reads the format that newer models declare themselves: give the file or the model's folder.

    \b
    Examples:
      localagent parse output.txt
      localagent parse --dialect auto < output.txt
      localagent parse --dialect lfm2 --jsonl < outputs.jsonl > parsed.jsonl
      localagent parse --dialect-from models/some-model < output.txt
    """
    from localagent.cli.parse import chosen_dialect, list_dialects, opened, parse_lines, parse_text

    if list_them:
        list_dialects(as_json=jsonl)
        return
    found = chosen_dialect(dialect, dialect_from)
    with opened(file) as source:
        (parse_lines if jsonl else parse_text)(found, source)


@app.command()
def connect(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            show_default=False,
            help="codex, claude, opencode, openwebui, zed, continue, or ollama for programs that know it.",
            autocompletion=client_names,
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARG", show_default=False, help="What --run passes on; put -- before it."),
    ] = None,
    url: Annotated[
        str, typer.Option("--url", help="Where `localagent serve` listens.")
    ] = "http://127.0.0.1:8080",
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="The model to use. Default: the first one that is served."),
    ] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option(
            "--api-key-env",
            metavar="VARIABLE",
            help="The environment variable that holds the server's key. Its name is written, never the key.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    run: Annotated[bool, typer.Option("--run", help="Start the program afterwards.")] = False,
    only_print: Annotated[bool, typer.Option("--print", help="Show the change, and write nothing.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Take back what was written.")] = False,
) -> None:
    """Connect another program to `serve`.

    It is told to use the models that `localagent serve` serves. Shows what would change in the program's
    configuration file and writes it if you agree. Comments, order and formatting stay as they are. --undo
    gives back the file as it was; if it was changed meanwhile, only the entries made here go, and what
    they replaced comes back. Open WebUI and programs that know only Ollama are told by environment
    variables, which are printed.

    \b
    Examples:
      localagent connect codex
      localagent connect claude --model lfm2.5-1.2b-instruct --yes --run
      localagent connect opencode --url http://127.0.0.1:9000 --api-key-env LOCALAGENT_KEY
      localagent connect zed --print
      localagent connect codex --undo
    """
    from localagent.cli.connect import connect_client

    connect_client(
        name, arguments or (), url=url, model=model, key_env=api_key_env,
        yes=yes, run=run, only_print=only_print, undo=undo,
    )  # fmt: skip


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Seconds that an engine may take to answer.")
    ] = 120,
) -> None:
    """Show what works here, and how to fix the rest.

    Runs a small model on each engine, unquantized and quantized, in a separate process, and compares its
    tokens with the right ones. Checks memory, disk, folders, models and settings. Changes nothing and uses
    no network. The exit code is 0 if any engine works, else 1.

    \b
    Examples:
      localagent doctor
      localagent doctor --json | jq -r '.findings[] | select(.status == "problem") | .fix'
    """
    from localagent.cli.doctor import examine

    examine(as_json=as_json, timeout=timeout)
