"""`localagent connect`: show, write and undo what other programs need to know of the server."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import typer

from localagent.cli.input import require_text
from localagent.cli.show.diff import show_diff
from localagent.cli.terminal import agrees, say, show_line
from localagent.errors import LocalAgentError, UsageError
from localagent.wording import quoted

if TYPE_CHECKING:
    from localagent.connect.clients import Client, Target
    from localagent.connect.connection import Change, Connection

_PATIENCE = 5.0
_LARGEST = 1 << 20


class NoServer(LocalAgentError):
    """There is no server that could be asked for its models."""


def connect_client(
    name: str,
    arguments: Sequence[str],
    *,
    url: str,
    model: str | None,
    key_env: str | None,
    yes: bool,
    run: bool,
    only_print: bool,
    undo: bool,
) -> None:
    """Connect a client, or take that back. Raises UsageError, NoServer, SaveFailed."""
    from localagent.connect.clients import find_client
    from localagent.connect.connection import Connection

    client = find_client(name)
    require_text("--model", model)
    if undo and run:
        raise UsageError("--undo and --run exclude each other")
    if arguments and not run:
        raise UsageError(f"{quoted(arguments[0])}: arguments for {client.title} need --run")
    if run and not client.command:
        raise UsageError(f"{name} is no single program that could be started")
    if undo:
        _undo(client, yes=yes, only_print=only_print)
        return
    target = _target(url, model, key_env, ask=client.document is not None)
    if client.document is not None:
        connection = Connection(client)
        _offer(client, connection, connection.connect(client.entries(target)), yes=yes, only_print=only_print)
    if only_print or not run:
        _show_environment(client, target)
        return
    _start(client, target, arguments)


def _offer(client: Client, connection: Connection, change: Change, *, yes: bool, only_print: bool) -> None:
    """Show a change, and make it if the user agrees."""
    if change.nothing:
        say(f"{client.title} is connected: {change.path} needs no change")
        return
    _show(change)
    if only_print:
        return
    if not (yes or agrees(f"Write this to {change.path}?")):
        say("nothing is changed")
        raise typer.Exit(1)
    connection.write(change)
    say(f"{client.title} is connected; localagent connect {client.name} --undo takes it back")


def _undo(client: Client, *, yes: bool, only_print: bool) -> None:
    from localagent.connect.connection import Connection

    if client.document is None:
        raise UsageError(f"nothing was written for {client.title}: unset {', '.join(_variables(client))}")
    connection = Connection(client)
    change = connection.undo()
    if not change.nothing:
        _show(change)
    for each in change.kept:
        say(f"{each} was changed since, and stays as it is")
    if only_print:
        return
    if not (change.nothing or yes or agrees(f"Write this to {change.path}?")):
        say("nothing is changed")
        raise typer.Exit(1)
    connection.write(change)
    say(f"{client.title} is as it was before")


def _show(change: Change) -> None:
    """The change as a diff."""
    before, after = (None if data is None else data.decode() for data in (change.before, change.after))
    show_diff(str(change.path), before, after)


def _show_environment(client: Client, target: Target) -> None:
    """What has to be set in the shell, with the key by its variable's name alone."""
    if client.document is None:
        for name, value in client.environment(target).items():
            hidden = target.key_env is not None and value == target.key
            show_line(
                f'export {name}="${target.key_env}"' if hidden else f"export {name}={shlex.quote(value)}"
            )
    if client.hint:
        say(client.hint)


def _variables(client: Client) -> list[str]:
    from localagent.connect.clients import Target

    return list(client.environment(Target("", "")))


def _start(client: Client, target: Target, arguments: Sequence[str]) -> None:
    """Become the client, with our environment and its own."""
    command = shutil.which(client.command[0])
    if command is None:
        raise UsageError(f"{client.command[0]} is not installed, or not in PATH")
    words = [command, *client.command[1:], *arguments]
    environment = {**os.environ, **client.environment(target)}
    sys.stdout.flush()
    if os.name == "nt":  # where a replaced process does not keep its terminal
        raise typer.Exit(subprocess.run(words, env=environment, check=False).returncode)
    os.execve(command, words, environment)


def _target(url: str, model: str | None, key_env: str | None, *, ask: bool) -> Target:
    """What the client is to use. `ask`: let the server say what was not given."""
    from localagent.connect.clients import Target

    if key_env is not None and not key_env.isidentifier():
        raise UsageError(f"--api-key-env is {quoted(key_env)}: it must be the name of a variable, not a key")
    base = url.rstrip("/").removesuffix("/v1")
    parts = urlsplit(base)
    if parts.scheme not in ("http", "https") or not parts.hostname or not base.isprintable() or " " in base:
        raise UsageError(f"--url is {quoted(url)}: it must be like http://127.0.0.1:8080")
    if not ask:
        return Target(base, model or "", None, key_env)
    try:
        served = _served(base, Target(base, "", key_env=key_env).key if key_env else None)
    except NoServer:
        if model is None:
            raise
        return Target(base, model, None, key_env)
    found = next((each for each in served if each["id"] == model or model is None), None)
    if found is None:
        say(f"note: {quoted(str(model))} is none of the models there, unless by an alias")
        return Target(base, str(model), None, key_env)
    context = found.get("context_length")
    return Target(base, found["id"], context if isinstance(context, int) else None, key_env)


def _served(base: str, key: str | None) -> list[dict[str, Any]]:
    """The models of a server. Raises NoServer."""
    import urllib.error
    import urllib.request

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(f"{base}/v1/models", headers=headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({})) if _is_local(base) else None
    ask = opener.open if opener else urllib.request.urlopen
    try:
        with ask(request, timeout=_PATIENCE) as answer:
            listing = json.loads(answer.read(_LARGEST))
        models = [
            each for each in listing["data"] if isinstance(each["id"], str) and each["id"].isprintable()
        ]
    except urllib.error.HTTPError as error:
        error.close()  # nobody reads what it says besides
        if error.code == 401:
            raise UsageError(
                f"the server at {base} wants a key: name the variable that holds it with --api-key-env"
            ) from None
        raise NoServer(f"the server at {base} answers {error.code} when it is asked for its models") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NoServer(
            f"no server answers at {base} ({getattr(error, 'reason', None) or error}): start it with "
            "localagent serve, or give --model"
        ) from None
    if not models:
        raise NoServer(f"the server at {base} has no models")
    return models


def _is_local(base: str) -> bool:
    host = urlsplit(base).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")
