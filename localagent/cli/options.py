"""Options that several commands share, each declared once with its help and its range.

A command takes a group of them as one parameter; `grouped` shows the fields to typer as options.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, cast, get_type_hints

import typer

from localagent.cli.completing import dialect_names, model_names, tool_names
from localagent.errors import UsageError
from localagent.hosts.backends import BackendName
from localagent.hosts.sampling import Sampling
from localagent.settings import API_KEY, URL

if TYPE_CHECKING:
    from localagent.control import TurnOptions  # slow to load, and `--help` must not be

T = TypeVar("T", "ModelOptions", "ToolOptions")

_SAMPLING = {each.name: each for each in dataclasses.fields(Sampling)}


def _of_sampling(name: str, more: str = "") -> Any:
    """A sampling option, with the range and the meaning that `Sampling` gives."""
    told = _SAMPLING[name].metadata
    least = told["numbers"].least
    return typer.Option(min=least if least > float("-inf") else None, help=f"{told['meaning']}{more}")


Backend = Annotated[
    BackendName | None,
    typer.Option("--backend", help="The engine. Default: MLX on Apple silicon, llama.cpp elsewhere."),
]
Context = Annotated[
    int | None, typer.Option(min=1, help="Context window in tokens. Default: the model's, up to 32,768.")
]
Threads = Annotated[
    int | None, typer.Option(min=1, help="CPU threads. Default: one per core, fewer beside busy programs.")
]


HERE = "none"
"""What `--url` takes for this machine."""

Files = Annotated[
    list[Path] | None,
    typer.Option(
        "--file", "-f", metavar="FILE", help="A file that goes with the prompt; may be given again."
    ),
]


@dataclasses.dataclass(frozen=True, slots=True)
class ModelOptions:
    """Which model answers, how it is loaded, how its tokens are sampled and how it thinks."""

    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="A name from `localagent models list` or its beginning, an alias, a GGUF file, an MLX "
            "folder, hf:owner/name[:quantization], or the address of a model on a server, such as "
            "vllm://host:8000/model. Default: LOCALAGENT_MODEL, or `models default`.",
            autocompletion=model_names,
        ),
    ] = None
    system: Annotated[
        str | None, typer.Option("--system", "-s", help="Instructions for the whole conversation.")
    ] = None
    role: Annotated[
        str | None,
        typer.Option(
            "--role",
            metavar="NAME|FILE",
            help="Instructions and options from a file, or from NAME.md in the folder `roles` of "
            "$LOCALAGENT_HOME.",
        ),
    ] = None
    max_tokens: Annotated[int | None, _of_sampling("max_tokens")] = None
    temperature: Annotated[float | None, _of_sampling("temperature", " Default: the model's own.")] = None
    top_p: Annotated[float | None, _of_sampling("top_p")] = None
    top_k: Annotated[int | None, _of_sampling("top_k")] = None
    stop: Annotated[
        list[str] | None,
        typer.Option("--stop", metavar="TEXT", help="End the answer before this text; may be given again."),
    ] = None
    seed: Annotated[int | None, _of_sampling("seed")] = None
    think: Annotated[
        bool | None,
        typer.Option(
            "--think/--no-think",
            help="Whether the model thinks before it answers. Default: what its chat template says.",
        ),
    ] = None
    think_level: Annotated[
        Literal["low", "medium", "high"] | None,
        typer.Option("--think-level", help="How much the model thinks, if its chat template has levels."),
    ] = None
    think_budget: Annotated[
        int | None,
        typer.Option(
            "--think-budget", min=0, metavar="TOKENS", help="End the thinking after this many tokens."
        ),
    ] = None
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            metavar="URL",
            envvar=URL,
            help="Ask a server, such as `localagent serve`, in place of a model on this machine. Its key, if "
            f"it wants one, is taken from {API_KEY}. `{HERE}`: a model on this machine, where {URL} or a "
            "resumed session names a server.",
        ),
    ] = None
    backend: Backend = None
    context: Context = None
    threads: Threads = None
    dialect: Annotated[
        str | None,
        typer.Option(
            "--dialect",
            metavar="NAME",
            help="How the model writes calls: a name from `localagent parse --list`, a TOML file, or auto. "
            "Default: what is known of it.",
            autocompletion=dialect_names,
        ),
    ] = None
    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer",
            metavar="FOLDER|FILE|OWNER/NAME",
            help="Where the tokenizer is of a model on a server of tokens, if the server does not say.",
        ),
    ] = None

    @property
    def server(self) -> str | None:
        """The address of the server that answers; None: the model is on this machine."""
        return None if self.url == HERE else self.url

    def of_turns(self) -> TurnOptions:
        """The options of a turn that were given; the model's defaults apply to the others.

        Raises UsageError for options that contradict each other.
        """
        if self.think is False and self.think_level is not None:
            raise UsageError(f"--no-think and --think-level {self.think_level}: choose one of them")
        given = {name: getattr(self, name) for name in self.__slots__ if name in _SAMPLING}
        given |= {"thinking": self.think_level or self.think, "thinking_budget": self.think_budget}
        return cast("TurnOptions", {name: value for name, value in given.items() if value is not None})


@dataclasses.dataclass(frozen=True, slots=True)
class ToolOptions:
    """Which tools the model may call, and which calls need approval."""

    tools: Annotated[
        list[str] | None,
        typer.Option(
            "--tools",
            "-t",
            metavar="NAME,...",
            help="Tools that the model may call; see `localagent tools`.",
            autocompletion=tool_names,
        ),
    ] = None
    functions: Annotated[
        list[str] | None,
        typer.Option(
            "--tool",
            metavar="MODULE:FUNCTION",
            help="A typed function that the model may call, with a docstring that tells it what for.",
        ),
    ] = None
    root: Annotated[
        Path | None,
        typer.Option(
            "--root", metavar="FOLDER", help="The folder that file tools are confined to. Default: this one."
        ),
    ] = None
    mcp: Annotated[
        Path | None,
        typer.Option(
            "--mcp", metavar="FILE", help="Use the tools of the MCP servers in this `mcpServers` file."
        ),
    ] = None
    allow: Annotated[
        list[str] | None,
        typer.Option(
            "--allow", metavar="TOOL", help="Run this tool without asking; a pattern such as 'note*'."
        ),
    ] = None
    ask: Annotated[
        list[str] | None,
        typer.Option("--ask", metavar="TOOL", help="Ask before this tool runs, even if it changes nothing."),
    ] = None
    deny: Annotated[
        list[str] | None, typer.Option("--deny", metavar="TOOL", help="Never run this tool; a pattern.")
    ] = None


@dataclasses.dataclass(frozen=True, slots=True)
class AnswerOptions:
    """What the model has to write: which calls, or an answer of which form."""

    tool_choice: Annotated[
        str | None,
        typer.Option(
            "--tool-choice", metavar="CHOICE", help="auto, none, required, or the name of the tool to call."
        ),
    ] = None
    parallel: Annotated[
        bool, typer.Option("--parallel/--no-parallel", help="Whether one turn may make several calls.")
    ] = True
    schema: Annotated[
        Path | None,
        typer.Option("--schema", metavar="FILE", help="Answer with JSON that fits the JSON Schema in FILE."),
    ] = None
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse tools with a schema that cannot be enforced in full.")
    ] = False

    def of_turns(self) -> TurnOptions:
        """The options of a turn that were given. Raises UsageError for a file that holds no schema."""
        given: TurnOptions = {}
        if self.tool_choice is not None:
            given["tool_choice"] = self.tool_choice
        if not self.parallel:
            given["parallel_tool_calls"] = False
        if self.schema is not None:
            schema = {"name": self.schema.stem, "schema": _read_schema(self.schema)}
            given["response_format"] = {"type": "json_schema", "json_schema": schema}
        if self.strict:
            given["strict"] = True
        return given


@dataclasses.dataclass(frozen=True, slots=True)
class RunOptions:
    """How `run` prints the answer, and which conversation it belongs to."""

    go_on: Annotated[
        bool, typer.Option("--continue", "-c", help="Go on with the last conversation, also one of `chat`.")
    ] = False
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the whole AssistantMessage as JSON, with usage.")
    ] = False
    events: Annotated[
        bool,
        typer.Option("--events", help="Print what happens as it happens, as JSON: one event on a line."),
    ] = False
    stats: Annotated[bool, typer.Option("--stats", help="Print tokens and speed on stderr.")] = False
    no_save: Annotated[
        bool, typer.Option("--no-save", help="Do not save the conversation, so that -c cannot go on with it.")
    ] = False


def fill(given: T, kept: Mapping[str, Any], whose: str) -> T:
    """The options with the values of `kept` where none was given.

    `whose`: for the UsageError about a value that makes no sense.
    """
    from pydantic import TypeAdapter, ValidationError

    from localagent.messages import explain

    try:
        found = TypeAdapter(type(given)).validate_python(dict(kept))
    except ValidationError as error:
        raise UsageError(f"{whose}: {explain(error)}") from None
    unset = {
        each.name: getattr(found, each.name)
        for each in dataclasses.fields(given)
        if getattr(given, each.name) is None
    }
    return dataclasses.replace(given, **unset)


def _read_schema(path: Path) -> Any:
    try:
        schema = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--schema {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--schema {path}: not JSON: {error}") from error
    if not isinstance(schema, dict | bool):
        raise UsageError(f"--schema {path}: a JSON Schema is an object, not {schema!r:.40}")
    return schema


@dataclasses.dataclass(frozen=True, slots=True)
class ServeOptions:
    """What is served, to whom, and within which bounds."""

    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            metavar="MODEL",
            help="As for `run`: a name, an alias, a path, hf:owner/name, or the address of a model on a "
            "server of tokens; may be given again.",
            autocompletion=model_names,
        ),
    ] = None
    aliases: Annotated[
        list[str] | None,
        typer.Option(
            "--alias", metavar="A=B", help="Answer to the name A, a pattern such as 'claude-*', with B."
        ),
    ] = None
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 8080
    api_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keys that clients must send, one a line.")
    ] = None
    origins: Annotated[
        list[str] | None,
        typer.Option(
            "--origin",
            metavar="URL",
            help="Pages of this origin may ask, such as http://localhost:3000, or vscode-webview://* for all "
            "of a program's; or *.",
        ),
    ] = None
    allow_hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host", metavar="NAME", help="Answer to this host name, too; may be given again."
        ),
    ] = None
    max_queue: Annotated[
        int, typer.Option(min=0, help="Requests that may wait for a model; others get 503.")
    ] = 64
    deadline: Annotated[float, typer.Option(min=1, help="Seconds after which an answer is broken off.")] = (
        3600
    )
    drain: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="After SIGTERM, let running answers end for so long, while new requests get 503. "
            "A second signal, or Ctrl-C, ends at once. Default: 4. Not with --ray.",
        ),
    ] = None
    lanes: Annotated[
        int | None, typer.Option(min=1, help="Answers at once, of each model. Default: as memory allows.")
    ] = None
    idle: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="Unload a model after so many unused seconds. Default: 600 with several models, else never.",
        ),
    ] = None
    restart: Annotated[
        bool,
        typer.Option(
            "--restart",
            help="Load a model again whose engine has ended or was given up. "
            "Where memory does not allow that, end, so that what watches over the server starts it again.",
        ),
    ] = False
    stall_limit: Annotated[
        float | None,
        typer.Option(
            "--stall-limit",
            metavar="SECONDS",
            min=0,
            help="Give up an engine that spends so long on one step, at least 60. 0: never. Default: 300.",
        ),
    ] = None
    buffer_tool_calls: Annotated[
        bool,
        typer.Option(
            "--buffer-tool-calls/--stream-tool-calls",
            help="Send each tool call only when it is complete, or its arguments as the model writes them.",
        ),
    ] = True
    allow_pull: Annotated[
        bool,
        typer.Option(
            "--allow-pull",
            help="Let clients fetch models of the catalogue and of Hugging Face, and delete them "
            "(Ollama's /api/pull and /api/delete). Not with --ray.",
        ),
    ] = False
    metrics: Annotated[bool, typer.Option("--metrics", help="Offer /metrics in the form of Prometheus.")] = (
        False
    )
    no_page: Annotated[
        bool, typer.Option("--no-page", help="Offer no page for browsers at /, only the interfaces.")
    ] = False
    log_prompts: Annotated[
        bool, typer.Option("--log-prompts", help="Log what is asked and answered, too.")
    ] = False
    share_prefixes: Annotated[
        bool,
        typer.Option("--share-prefixes", help="Reuse evaluated prompts among clients with different keys."),
    ] = False
    no_snapshots: Annotated[
        bool, typer.Option("--no-snapshots", help="Keep no evaluated prompts on disk.")
    ] = False
    ray: Annotated[
        bool, typer.Option("--ray", help="Serve by replicas on Ray Serve, on this machine or a cluster.")
    ] = False
    replicas: Annotated[
        str | None,
        typer.Option(
            metavar="MIN:MAX",
            help="With --ray: replicas of the models, as many as there is work for. Default: 1.",
        ),
    ] = None
    address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="With --ray: a cluster that runs already, such as auto. Default: this machine alone.",
        ),
    ] = None
    gpus: Annotated[
        float | None, typer.Option(min=0, help="With --ray: graphics cards of each replica. Default: none.")
    ] = None
    models_per_replica: Annotated[
        int | None,
        typer.Option(min=1, help="With --ray: models that a replica holds at once. Default: all."),
    ] = None
    print_config: Annotated[
        bool,
        typer.Option("--print-config", help="With --ray: print a file for `serve deploy`, and end."),
    ] = False
    dialect: Annotated[
        str | None,
        typer.Option(
            "--dialect",
            metavar="NAME",
            help="How the models write calls: a name from `localagent parse --list`, a TOML file, or auto. "
            "Default: what is known of each.",
            autocompletion=dialect_names,
        ),
    ] = None
    backend: Backend = None
    context: Context = None
    threads: Threads = None


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer needs it: the fields of its dataclass parameters become options of their own."""
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    hints = get_type_hints(command, include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        if not dataclasses.is_dataclass(group := hints[name]):
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=group))
            continue
        groups[name] = group
        types = get_type_hints(group, include_extras=True)
        parameters += [
            inspect.Parameter(
                each.name, parameter.KEYWORD_ONLY, default=each.default, annotation=types[each.name]
            )
            for each in dataclasses.fields(group)
        ]

    @functools.wraps(command)
    def flat(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{each.name: given.pop(each.name) for each in dataclasses.fields(group)})
        command(**given)

    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return flat
