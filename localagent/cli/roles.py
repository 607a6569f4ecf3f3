"""Roles: instructions for a model in a file, with the options that go with them.

`--role reviewer` reads `roles/reviewer.md` in $LOCALAGENT_HOME, or in the user's folder for configuration;
`--role ./reviewer.md` reads that file. The text is the instructions. Options may stand in front of it, as
TOML between two lines of `+++`:

    +++
    model = "lfm2.5-1.2b-instruct"
    temperature = 0.2
    tools = ["files"]
    +++
    You review code. Name each mistake with its line.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from pathlib import Path

from localagent.cli.options import ModelOptions, ToolOptions, fill
from localagent.errors import UsageError
from localagent.files.paths import user_path
from localagent.wording import listed, quoted

_FRONT = re.compile(r"\s*\+\+\+[ \t]*\n(.*?)^\+\+\+[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_OF_TOOLS = ("tools",)  # no role may start programs, name folders or permit calls
_NOT_IN_ROLES = ("system", "role", "url", "tokenizer")  # nor say where a conversation goes


def folder() -> Path:
    """Where roles are kept. Raises UsageError."""
    return user_path("config", "roles")


def with_role(options: ModelOptions, tools: ToolOptions) -> tuple[ModelOptions, ToolOptions]:
    """The options with those of the role, if one was given, where they say nothing themselves.

    Raises UsageError for a role that does not exist or cannot be read.
    """
    if options.role is None:
        return options, tools
    path = _find(options.role)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise UsageError(f"--role {quoted(options.role)}: {path} cannot be read: {error}") from error
    front = _FRONT.match(text)
    whose = f"--role {quoted(options.role)}"
    try:
        said = tomllib.loads(front[1]) if front else {}
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{whose}: the text between the lines of +++ is not TOML: {error}") from error
    of_model = [each.name for each in dataclasses.fields(options) if each.name not in _NOT_IN_ROLES]
    if unknown := [name for name in said if name not in (*of_model, *_OF_TOOLS)]:
        raise UsageError(
            f"{whose}: no option {quoted(unknown[0])}: there are {listed([*of_model, *_OF_TOOLS])}"
        )
    instructions = (text[front.end() :] if front else text).strip()
    if options.system is None and instructions:
        options = dataclasses.replace(options, system=instructions)
    thinks = any(each is not None for each in (options.think, options.think_level, options.think_budget))
    of_turns = {n: value for n, value in said.items() if not (thinks and n.startswith("think"))}
    options = fill(options, {n: value for n, value in of_turns.items() if n not in _OF_TOOLS}, whose)
    tools = fill(tools, {n: value for n, value in said.items() if n in _OF_TOOLS}, whose)
    return options, tools


def names() -> list[str]:
    """The roles that there are. Raises UsageError."""
    try:
        return sorted(path.stem for path in folder().glob("*.md"))
    except OSError:
        return []


def _find(role: str) -> Path:
    path = Path(role)
    if path.suffix or "/" in role or "\\" in role:
        path = path.expanduser()
        if not path.is_file():
            raise UsageError(f"--role {quoted(role, 200)}: there is no such file")
        return path
    kept = folder() / f"{role}.md"
    if not kept.is_file():
        hint = f"there are {listed(found)}" if (found := names()) else f"write {kept}"
        raise UsageError(f"no role {quoted(role)}: {hint}")
    return kept
