"""`localagent sessions`: list, search, show, rename, remove and export conversations.

Results go to stdout; warnings, questions and what could not be read to stderr. Only typer and the standard
library are imported at the top, for a fast `--help`.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from localagent.cli.completing import session_names
from localagent.cli.home import help_alone
from localagent.cli.terminal import (
    Style,
    agrees,
    cell,
    exactly,
    flat,
    json_escaped,
    say,
    show_json,
    show_line,
    show_table,
    styled,
    takes_colour,
    write_raw,
)
from localagent.wording import size_text

if TYPE_CHECKING:
    from localagent.cli.transcript import Passage
    from localagent.messages import Message
    from localagent.session import Session, SessionInfo

app = typer.Typer(
    help="Saved conversations: list, search, show and export them.",
    callback=help_alone,
    invoke_without_command=True,
)

Format = Literal["markdown", "text", "json", "jsonl", "openai", "anthropic", "gemini"]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
SessionName = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="An id or the beginning of one; `last` is the session changed last.",
        autocompletion=session_names,
    ),
]
EntryOption = Annotated[
    str | None,
    typer.Option("--entry", metavar="ENTRY", help="The branch that ends in this entry; see `show --tree`."),
]


@app.command("list")
def list_sessions(as_json: AsJson = False) -> None:
    """List all sessions, the last changed first.

    They are kept in $LOCALAGENT_HOME/sessions, or in the user's data folder.

    \b
    Examples:
      localagent sessions list
      localagent sessions list --json | jq -r '.[].id'
    """
    from localagent.session import SessionStore

    store = SessionStore()
    infos = store.list()
    if as_json:
        show_json([_row(info) for info in infos])
    elif infos:
        _print_table(infos)
    else:
        say(f"no sessions in {store.root}")


@app.command()
def search(
    words: Annotated[list[str], typer.Argument(metavar="WORD...", help="What was said, or the title.")],
    as_json: AsJson = False,
) -> None:
    """Find conversations in which all the words occur, the last changed first.

    Titles count, and what was said on any branch; upper and lower case are the same.

    \b
    Examples:
      localagent sessions search paris weather
      localagent chat --resume $(localagent sessions search paris --json | jq -r '.[0].id')
    """
    from localagent.session import SessionStore

    found = list(SessionStore().search(" ".join(words)))
    if as_json:
        show_json([{**_row(each.info), "passage": each.passage} for each in found])
        return
    if not found:
        say(f"no session has {' '.join(words)}")
        raise typer.Exit(1)
    for each in found:
        changed = f"{each.info.changed.astimezone():%Y-%m-%d %H:%M}"
        show_line(f"{flat(each.info.id)}  {changed}  {flat(each.info.title or 'no title')}")
        show_line(f"  {flat(each.passage)}")


@app.command()
def rename(
    name: SessionName,
    title: Annotated[list[str] | None, typer.Argument(metavar="TITLE...", help="The new title.")] = None,
    forget: Annotated[bool, typer.Option("--forget", help="Go back to the first title.")] = False,
) -> None:
    """Give a conversation another title.

    \b
    Examples:
      localagent sessions rename last Trip to Paris
      localagent sessions rename 20261121-1030 --forget
    """
    from localagent.cli.input import require_text
    from localagent.errors import UsageError
    from localagent.session import SessionStore, glance

    if bool(title) == forget:
        raise UsageError("give either the new title or --forget")
    words = " ".join(title or ())
    require_text("the title", words)
    path = SessionStore().rename(name, None if forget else words)
    info = glance(path)
    show_line(f"{flat(info.id)}: {flat(info.title or 'no title')}")


@app.command()
def show(
    name: SessionName,
    entry: EntryOption = None,
    tree: Annotated[bool, typer.Option("--tree", help="Draw all branches, a line per entry.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a conversation.

    The whole current branch, including parts that were flushed or summarised.

    \b
    Examples:
      localagent sessions show last
      localagent sessions show 20261121-1030 --tree
      localagent sessions show last --entry 4f2a1b2c
    """
    from localagent.cli.transcript import as_text, draw_tree, tell_entry

    session = _open(name, entry)
    if as_json:
        show_json(_details(session))
        return
    count, ends = len(session.entries), len(session.leaves)
    entries = f"{count:,} {'entry' if count == 1 else 'entries'}"
    branches = f" on {ends:,} branches" if ends > 1 else ""
    show_line(f"{flat(session.id)}: {flat(session.title or 'no title')}")
    show_line(f"{entries}{branches}, kept in {session.file}\n")
    if tree:
        for line in draw_tree(session):
            show_line(line)
    else:
        write_raw(sys.stdout, as_text(map(tell_entry, session.path()), _paint))


@app.command("rm")
def remove(
    names: Annotated[
        list[str],
        typer.Argument(metavar="ID...", help="Ids, or the beginnings of ids.", autocompletion=session_names),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove sessions for good.

    \b
    Examples:
      localagent sessions rm 20261121-103000-4f2a
      localagent sessions rm last --yes
    """
    from localagent.session import SessionStore, glance

    store = SessionStore()
    infos = {path: glance(path) for path in map(store.find, names)}
    titles = ", ".join(f"{info.id} ({info.title or 'no title'})" for info in infos.values())
    if not (yes or agrees(f"Remove {titles} from {store.root}?")):
        say("not removed")
        raise typer.Exit(1)
    for path, info in infos.items():
        store.remove(path)
        show_line(f"removed {flat(info.id)}: {size_text(info.size)}")


@app.command()
def export(
    name: SessionName,
    form: Annotated[Format, typer.Option("--format", "-f", help="What to write.")] = "markdown",
    entry: EntryOption = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to this file in place of standard output.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Write a conversation in another format.

    Writes what a model would be sent: flushed parts are left out, and summaries replace what they summarise.
    `json` is the list of messages, `jsonl` has one message per line; both can be loaded again without loss.
    `openai`, `anthropic` and `gemini` are the messages of a request to such an API.

    \b
    Examples:
      localagent sessions export last > conversation.md
      localagent sessions export last --format openai --output request.json
    """
    session = _open(name, entry)
    _write(_exported(session.context(), form), output, force)


def _open(name: str, entry: str | None) -> Session:
    """The session, with its head at `entry` if given. Lines that cannot be read are reported on stderr."""
    from localagent.session import SessionStore

    session = SessionStore().open(name)
    for problem in session.problems:
        say(f"{session.id}, {problem}")
    if entry is not None:
        session.branch(entry)
    return session


def _exported(messages: list[Message], form: Format) -> str:
    from localagent.cli.transcript import as_markdown, as_text, tell, without_settings
    from localagent.messages import dump_messages

    match form:
        case "markdown":
            return as_markdown(map(tell, without_settings(messages)))
        case "text":
            return as_text(map(tell, without_settings(messages)))
        case "json":
            return json_escaped(dump_messages(messages)) + "\n"
        case "jsonl":
            return "".join(json_escaped(message.model_dump_json()) + "\n" for message in messages)
        case _:
            return _payload(messages, form)


def _payload(messages: list[Message], wire: str) -> str:
    """The messages of a request in that provider's format. Raises Unsupported, UnpairedResult."""
    from localagent.prompt.request import build_request

    module = import_module(f"localagent.wire.{wire}")
    request = build_request(messages, module.TARGET)
    for warning in request.warnings:
        say(f"warning: {warning.text}")
    return json_escaped(json.dumps(module.to_wire(request.messages), indent=2, ensure_ascii=False)) + "\n"


def _write(text: str, output: Path | None, force: bool) -> None:
    from localagent.errors import UsageError
    from localagent.files.paths import replace_file

    if output is None:
        exactly(text, encoding="utf-8")  # whatever stdout's encoding is: the text is to be loaded again
        return
    try:
        if not force and output.exists():
            raise UsageError(f"{output} exists already: --force overwrites it")
        if output.exists() and not output.is_file():
            output.write_bytes(text.encode())  # a device or a pipe: it cannot be replaced, only written to
        else:
            replace_file(output, text.encode())
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot write {output}: {getattr(error, 'strerror', None) or error}") from error


def _row(info: SessionInfo) -> dict[str, Any]:
    return {
        "id": info.id,
        "title": info.title,
        "created": info.created and info.created.isoformat(),
        "changed": info.changed.isoformat(),
        "size": info.size,
        "path": str(info.path),
        "problem": info.problem,
    }


def _details(session: Session) -> dict[str, Any]:
    return {
        "id": session.id,
        "title": session.title,
        "path": str(session.file),
        "head": session.head,
        "leaves": [entry.id for entry in session.leaves],
        "entries": [entry.model_dump(mode="json") for entry in session.entries],
        "problems": [str(problem) for problem in session.problems],
    }


def _print_table(infos: list[SessionInfo]) -> None:
    rows = [
        (
            flat(info.id),
            f"{info.changed.astimezone():%Y-%m-%d %H:%M}",
            size_text(info.size),
            flat(f"{info.title or 'nothing said yet'}{f' ({info.problem})' if info.problem else ''}"),
        )
        for info in infos
    ]
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(("session", "changed", "size", "title")):
        # On a narrow terminal only the title is cut: ids are to be typed.
        width = None if column == "title" else max(len(row[number]) for row in rows)
        table.add_column(
            column, no_wrap=True, min_width=width, justify="right" if column == "size" else "left"
        )
    for row in rows:
        table.add_row(*map(cell, row))
    show_table(table, "Continue one: localagent chat --resume ID")


_STYLES: dict[str, Style] = {"reasoning": "dim", "call": "cyan", "problem": "red", "note": "dim"}


def _paint(passage: Passage) -> str:
    """The passage in its colour, if stdout is a terminal."""
    from localagent.cli.transcript import in_words

    return styled(in_words(passage), _STYLES.get(passage.manner) if takes_colour(sys.stdout) else None)
