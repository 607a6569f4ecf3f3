"""The configuration of MCP servers: the `mcpServers` JSON of Claude Desktop, Cursor, VS Code and others.

Nothing is started here. Every mistake is a UsageError of one line that names the file, the server and the
field.

A key that does not change how a server runs (`description`, an icon) is ignored. Any other unknown key is an
error, whether it is misspelt or belongs to another program, such as `envFile`: a server that silently runs
without its variables, or with more tools than were meant, is worse than one that does not start.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from localagent.errors import UsageError
from localagent.messages import explain, parse_object
from localagent.messages.values import refuse
from localagent.wording import quoted

EVERY = "*"
"""In a list of tools, stands for all of them."""


class ServerConfig(BaseModel):
    """The fields that all servers share."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)

    name: str = Field(min_length=1)
    timeout: float | None = Field(None, gt=0, allow_inf_nan=False)
    """Seconds for one call; None means the agent's own limit."""
    allowed: frozenset[str] = frozenset()
    """Tools that run without approval, by the server's names; "*" for all."""
    tools: frozenset[str] | None = None
    """The tools to offer; None for all."""
    disabled_tools: frozenset[str] = frozenset()
    """Tools that are not offered."""

    def offers(self, tool: str) -> bool:
        """Whether a tool of the server is offered to models."""
        return (self.tools is None or tool in self.tools) and tool not in self.disabled_tools

    def allows(self, tool: str) -> bool:
        """Whether the tool may run without asking."""
        return tool in self.allowed or EVERY in self.allowed

    @property
    def place(self) -> tuple[str, ...]:
        """The program or the address, without the name and the settings."""
        return (self.name,)


class StdioServer(ServerConfig):
    """A program that is started on this machine and reached through its standard input and output."""

    command: str = Field(min_length=1)
    args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict, repr=False)
    """Extra variables. Of ours a server inherits only HOME, LOGNAME, PATH, SHELL, TERM and USER."""
    cwd: str | None = None

    @property
    def place(self) -> tuple[str, ...]:
        """The program and its arguments."""
        return self.name, self.command, *self.args, f"cwd={self.cwd}"

    @field_validator("command", "cwd")
    @classmethod
    def _has_no_nul(cls, value: str | None) -> str | None:
        if value is not None and "\0" in value:
            refuse("nul", "it must not contain a NUL character")
        return value


class HttpServer(ServerConfig):
    """A server that is reached over streamable HTTP."""

    url: str
    headers: dict[str, str] = Field(default_factory=dict, repr=False)

    @property
    def place(self) -> tuple[str, ...]:
        """The address."""
        return self.name, self.url

    @field_validator("url")
    @classmethod
    def _is_http(cls, value: str) -> str:
        try:
            parts = urlsplit(value)
            known = parts.scheme in ("http", "https") and bool(parts.hostname)
            _ = parts.port
        except ValueError:
            known = False
        if not known:
            refuse("url", f"{quoted(value)} is not an http:// or https:// address")
        return value


_FIELDS = {
    "command": "command",
    "args": "args",
    "env": "env",
    "cwd": "cwd",
    "url": "url",
    "serverUrl": "url",
    "httpUrl": "url",
    "headers": "headers",
    "timeout": "timeout",
    "alwaysAllow": "allowed",
    "autoApprove": "allowed",
    "tools": "tools",
    "includeTools": "tools",
    "disabledTools": "disabled_tools",
    "excludeTools": "disabled_tools",
}
"""For each field, the keys in files that fill it."""
_ABOUT_TYPE = ("type", "transport", "transportType")
_NOTES = frozenset({"description", "displayName", "icon", "gallery", "version", "metadata", "disabled"})
_STDIO = frozenset({"command", "args", "env", "cwd"})
_HTTP = frozenset({"url", "headers"})
_TYPES = {"stdio": _STDIO, "http": _HTTP, "streamable-http": _HTTP, "streamablehttp": _HTTP}
_VARIABLE = re.compile(r"\$\{(?:env:)?([^}:]*)(?:(:-?)([^}]*))?\}")


def load_config(source: str | os.PathLike[str] | Mapping[str, Any]) -> tuple[ServerConfig, ...]:
    """The enabled servers of a file, or of its content as a mapping. Raises UsageError.

    They are under "mcpServers", under VS Code's "servers", or at the top of the document. `${VAR}`,
    `${VAR:-default}` and `${env:VAR}` in strings are replaced by environment variables.
    """
    if isinstance(source, Mapping):
        where, document = "mcpServers", dict(source)
    else:
        where, document = str(source), _read(Path(source))
    for key in ("mcpServers", "servers"):
        if isinstance(document.get(key), Mapping) and not _is_server(document[key]):
            document = document[key]
            break
    else:
        if "mcpServers" in document:
            raise UsageError(f"{where}: mcpServers: not an object of servers by their names")
    found = []
    for name, entry in document.items():
        place = f"{where}: server {name!r:.80}"
        if not isinstance(entry, Mapping):
            raise UsageError(f"{place}: not an object with a command or a url")
        disabled = entry.get("disabled", False)
        if not isinstance(disabled, bool):
            raise UsageError(f"{place}: disabled: not true or false")
        if not disabled:  # before reading the rest: a disabled server may name variables that are not set
            found.append(_server(name, entry, place))
    return tuple(found)


def _read(path: Path) -> dict[str, Any]:
    try:
        return parse_object(path.expanduser().read_text("utf-8-sig"))
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not UTF-8") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RuntimeError) as error:  # RuntimeError: no such home
        raise UsageError(f"{path}: not a JSON file of MCP servers: {error}") from None


def _is_server(entry: Mapping[str, Any]) -> bool:
    """Whether this entry is a server that happens to be called "servers", not a mapping of servers."""
    return any(isinstance(entry.get(key), str) for key in ("command", "url", "serverUrl", "httpUrl"))


def _server(name: str, entry: Mapping[str, Any], place: str) -> ServerConfig:
    fields: dict[str, Any] = {}
    keys: dict[str, str] = {}  # which key of the file filled a field
    for key, value in entry.items():
        if key in _NOTES or key in _ABOUT_TYPE:
            continue
        field = _FIELDS.get(key)
        if field is None:
            raise UsageError(f"{place}: {quoted(key)}: {_unknown(key)}")
        if field in ("allowed", "tools", "disabled_tools"):
            fields[field] = fields.get(field, frozenset()) | _names(value, f"{place}: {key}")
        elif field in fields:
            raise UsageError(f"{place}: {key}: says the same as {keys[field]}; keep one of them")
        else:
            fields[field] = _expanded(value, f"{place}: {key}")
        keys[field] = key
    if EVERY in fields.get("tools", ()):
        del fields["tools"]
    form = _form(entry, fields, place)
    for field in fields:
        if field in _STDIO | _HTTP and field not in form:
            belongs = "a url" if field in _HTTP else "a command"
            raise UsageError(f"{place}: {keys[field]}: only for servers with {belongs}")
    if isinstance(fields.get("args"), list):
        fields["args"] = tuple(fields["args"])
    try:
        return (StdioServer if form is _STDIO else HttpServer)(name=name, **fields)
    except ValidationError as error:
        raise UsageError(f"{place}: {explain(error, names=keys)}") from None


def _form(entry: Mapping[str, Any], fields: Mapping[str, Any], place: str) -> frozenset[str]:
    """The kind of server, from its keys and its type."""
    has = {field for field in ("command", "url") if field in fields}
    key = next((key for key in _ABOUT_TYPE if key in entry), None)
    said = entry[key] if key else None
    if said == "sse":
        raise UsageError(
            f"{place}: {key}: the SSE transport is not supported, MCP replaced it in 2025: "
            'use the address of the server\'s streamable HTTP endpoint with type "http"'
        )
    if len(has) != 1:
        raise UsageError(f"{place}: needs {'a command or a url' if not has else 'one of command and url'}")
    form = _STDIO if "command" in has else _HTTP
    if key is not None:
        stated = _TYPES.get(said.lower()) if isinstance(said, str) else None
        if stated is None:
            raise UsageError(f"{place}: {key}: {said!r:.60} is not a transport: use stdio or http")
        if stated is not form:
            raise UsageError(f"{place}: {key}: {said!r} does not go with a {next(iter(has))}")
    return form


def _names(value: Any, place: str) -> frozenset[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UsageError(f"{place}: not a list of tool names")
    return frozenset(value)


def _expanded(value: Any, place: str) -> Any:
    """The value with environment variables replaced in its strings, but not in its keys."""
    match value:
        case str():
            return _VARIABLE.sub(lambda match: _variable(match, place), value)
        case list():
            return [_expanded(item, f"{place}[{number}]") for number, item in enumerate(value)]
        case Mapping():
            return {key: _expanded(item, f"{place}.{quoted(str(key))}") for key, item in value.items()}
    return value


def _variable(match: re.Match[str], place: str) -> str:
    name, mark, default = match.groups()
    if mark == ":":
        raise UsageError(f"{place}: {quoted(match[0])} is not an environment variable: write ${{NAME}}")
    value = os.environ.get(name)
    if mark and not value:  # as in a shell, an empty one counts as unset
        return str(default)
    if value is None:
        raise UsageError(f"{place}: the environment variable {quoted(name)!s} is not set")
    return value


def _unknown(key: str) -> str:
    near = difflib.get_close_matches(key, [*_FIELDS, *_ABOUT_TYPE, "disabled"], 1)
    if key == "envFile":
        return "not supported; put the variables under env, as in ${NAME}"
    return (
        f"unknown key; did you mean {near[0]}?" if near else f"unknown key; the keys are {', '.join(_FIELDS)}"
    )
