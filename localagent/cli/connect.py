"""`localagent connect`: show, write and undo what other programs need to know of the server."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from localagent.cli.input import require_text
from localagent.cli.show.diff import show_diff
from localagent.cli.terminal import agrees, say, show_line
from localagent.errors import ServerRefused, ServerUnreachable, StreamBroken, UnknownModel, UsageError
from localagent.wording import quoted

if TYPE_CHECKING:
    from localagent.connect.clients import Client, ServedModel
    from localagent.connect.connection import Change, Connection

_PATIENCE = 5.0
"""Seconds of silence after which a server is not asked any more what it has."""


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
    """Connect a client, or take that back. Raises UsageError, SaveFailed, and what `_target` raises."""
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


def _show_environment(client: Client, target: ServedModel) -> None:
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
    from localagent.connect.clients import ServedModel

    return list(client.environment(ServedModel("", "")))


def _start(client: Client, target: ServedModel, arguments: Sequence[str]) -> None:
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


def _target(url: str, model: str | None, key_env: str | None, *, ask: bool) -> ServedModel:
    """What the client is to use. `ask`: let the server say what was not given.

    Raises UsageError; without `model` also ServerUnreachable, ServerRefused, StreamBroken and UnknownModel.
    """
    from localagent.connect.clients import ServedModel
    from localagent.remote.server import Server

    if key_env is not None and not key_env.isidentifier():
        raise UsageError(f"--api-key-env is {quoted(key_env)}: it must be the name of a variable, not a key")
    base = Server.at(url).url
    if not ask:
        return ServedModel(base, model or "", None, key_env)
    server = Server.at(url, ServedModel(base, "", key_env=key_env).key if key_env else None, _PATIENCE)
    try:
        served = server.models()
    except (ServerRefused, ServerUnreachable, StreamBroken) as error:
        if isinstance(error, ServerRefused) and error.status == 401:
            raise UsageError(
                f"the server at {base} wants a key: name the variable that holds it with --api-key-env"
            ) from None
        if model is None:
            raise
        return ServedModel(base, model, None, key_env)
    if not served:
        if model is None:
            raise UnknownModel(f"the server at {base} does not say which models it has: give --model")
        return ServedModel(base, model, None, key_env)
    name = model or next(iter(served))
    if name not in served:
        say(f"note: {quoted(name)} is none of the models there, unless by an alias")
    context = served.get(name, {}).get("context_length")
    return ServedModel(base, name, context if isinstance(context, int) else None, key_env)
