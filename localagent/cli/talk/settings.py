"""How the model of a chat is set up: what its session records, and what `/set` takes.

A session records the model, the options of its turns and its tools, so that `chat --resume` goes on with
them; options of the command line override. `--allow` is not among them: what may run without asking is
permitted anew each time.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from localagent.cli.naming import known_default
from localagent.cli.options import HERE, ModelOptions, ToolOptions, fill
from localagent.control import TurnOptions
from localagent.errors import UsageError
from localagent.hosts.sampling import Sampling, SamplingOptions
from localagent.prompt.thinking import LEVELS
from localagent.remote.address import is_address
from localagent.wording import listed, quoted, writable

THINKING = ("thinking", "thinking_budget")
_OF_TURNS = {*SamplingOptions.__annotations__, "think", "think_level", "think_budget"}
_NOT_RECORDED = {"system", "role", "allow"}
SETTABLE = (*(name for name in SamplingOptions.__annotations__ if name != "logprobs"), "thinking_budget")
"""The options that `/set` changes."""


_ELSEWHERE = ("model", "url", "backend", "threads", "context", "dialect", "tokenizer")
"""Options of the model that hold where it ran, and not on another server."""


def record(model: str, options: ModelOptions, tools: ToolOptions, turn: TurnOptions) -> dict[str, Any]:
    """What a session records; `model` is the name by which it can be loaded again."""
    loading = {**_given(options), "model": model}
    given = _given(tools)
    if given:  # resumed elsewhere, they work in the same folder
        given["root"] = str((tools.root or Path()).expanduser().absolute())
    return cast("dict[str, Any]", _as_text({"loading": loading, "tools": given, "turn": dict(turn)}))


def _as_text(value: Any) -> Any:
    """The same, with what is not Unicode escaped: a session is UTF-8, and a path may be any bytes.

    Such a path, or such a rule for tools, is refused when the session is resumed. If it were left out here, a
    rule that forbids something would be lost without a word.
    """
    match value:
        case str():
            return writable(value)
        case list() | tuple():
            return [_as_text(each) for each in value]
        case dict():
            return {name: _as_text(each) for name, each in value.items()}
    return value


def loadable(options: ModelOptions, name: str) -> str:
    """The name by which a model can be loaded again, from any folder and whatever is default then.

    `options`: how it was asked for; `name`: what that was found to be.
    """
    given = options.model
    if given is None and options.server is None:
        default = known_default(lambda _: None)
        given = default if is_address(default) else None  # a name of the server's means nothing here
    if given is None:
        return name
    path = Path(given).expanduser()
    return str(path.absolute()) if path.exists() else given


def restore(
    kept: Mapping[str, Any] | None, options: ModelOptions, tools: ToolOptions
) -> tuple[ModelOptions, ToolOptions, TurnOptions]:
    """The options of a chat: what was given, and for the rest what its session recorded.

    Raises UsageError for a record that makes no sense.
    """
    given, kept = options.of_turns(), kept or {}
    turn = {name: value for name, value in _mapping(kept, "turn").items() if name in (*SETTABLE, *THINKING)}
    if any(name in given for name in THINKING):  # two wishes for thinking may contradict each other
        turn = {name: value for name, value in turn.items() if name not in THINKING}
    loading = dict(_mapping(kept, "loading"))
    # How a model was loaded elsewhere tells nothing.
    if options.url is not None and options.url != loading.get("url", HERE):
        loading = {name: value for name, value in loading.items() if name not in _ELSEWHERE}
    options = fill(options, loading, "the session's settings")
    tools = fill(tools, _mapping(kept, "tools"), "the session's settings")
    return options, tools, cast(TurnOptions, {**turn, **given})


def read_setting(words: str) -> tuple[str, Any]:
    """The option and its value, of what follows `/set`; the value None stands for the model's own.

    Raises UsageError.
    """
    said, _, text = words.partition(" ")
    name = said.replace("-", "_").lower().replace("think_", "thinking_")
    fitting = [name] if name in SETTABLE else [each for each in SETTABLE if each.startswith(name)]
    if len(fitting) != 1:
        raise UsageError(f"no setting {quoted(said)}: there are {listed(SETTABLE)}")
    name, text = fitting[0], text.strip()
    if not text:
        raise UsageError(f"give a value, as in /set {name} {_EXAMPLES.get(name, '1')}, or `default`")
    if text == "default":
        return name, None
    if name == "stop":
        return name, _texts(text)
    try:
        return name, int(text) if _is_whole(name) else float(text)
    except ValueError:
        raise UsageError(f"{name} is {quoted(text)}: it must be a number") from None


def read_thinking(word: str) -> bool | str | None:
    """What follows `/think`. Raises UsageError."""
    known: dict[str, Any] = {"on": True, "off": False, "default": None, **{level: level for level in LEVELS}}
    if word.lower() not in known:
        raise UsageError(f"no way of thinking {quoted(word)}: there are {listed(known)}")
    return cast("bool | str | None", known[word.lower()])


def shown(turn: TurnOptions, sampling: Sampling | None) -> list[str]:
    """The settings of the next turn, a line each: those chosen here, and the model's own for the rest.

    `sampling`: the model's own; None where they are not known.
    """
    lines = []
    for name in SETTABLE:
        value = turn.get(name, getattr(sampling, name, None))
        own = "" if name in turn else " (the model's own)"
        if value not in (None, ()):
            lines.append(f"{name} {value if not isinstance(value, list | tuple) else json.dumps(value)}{own}")
    return lines


_EXAMPLES = {"temperature": "0.2", "max_tokens": "400", "top_p": "0.9", "top_k": "40", "stop": "END"}


def _is_whole(name: str) -> bool:
    found = next((each for each in dataclasses.fields(Sampling) if each.name == name), None)
    return found is None or found.metadata["numbers"].whole


def _texts(text: str) -> list[str]:
    """Stop strings: one as it is, or several as a JSON list."""
    if not text.startswith("["):
        return [text]
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise UsageError(f'stop is {quoted(text)}: it must be one text, or a JSON list such as ["a", "b"]')
    return found


def _given(options: ModelOptions | ToolOptions) -> dict[str, Any]:
    """The options that were given and are not those of a turn, as JSON; paths do not depend on the folder."""
    found = {each.name: getattr(options, each.name) for each in dataclasses.fields(options)}
    return {
        name: _from_anywhere(value) if isinstance(value, Path) or name in ("dialect", "tokenizer") else value
        for name, value in found.items()
        if value is not None and name not in _OF_TURNS and name not in _NOT_RECORDED
    }


def _from_anywhere(value: Path | str) -> str:
    """A path that does not depend on the folder; what is a name and no path stays one."""
    path = Path(value).expanduser()
    return str(path.absolute()) if isinstance(value, Path) or path.exists() else value


def _mapping(kept: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = kept.get(name)
    return (
        {key: value for key, value in found.items() if key not in _NOT_RECORDED}
        if isinstance(found, dict)
        else {}
    )
