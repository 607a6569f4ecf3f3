"""`localagent cache`: evaluated conversations kept on disk.

Results go to stdout, questions to stderr.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localagent.cli.home import help_alone
from localagent.cli.terminal import agrees, cell, flat, say, show_json, show_table
from localagent.wording import size_text

if TYPE_CHECKING:
    from pathlib import Path

    from localagent.hosts.prefix import SnapshotFolder

app = typer.Typer(
    help="Evaluated conversations on disk, which need not be read again.",
    callback=help_alone,
    invoke_without_command=True,
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


@app.command("list")
def list_snapshots(as_json: AsJson = False) -> None:
    """Show what is kept, by model.

    One line per evaluated conversation, the most recently used last. They are in $LOCALAGENT_HOME/prefixes,
    or in the user's cache folder, and take at most 1 GB per model and 4 GB in all: the least recently used
    are removed first.

    \b
    Examples:
      localagent cache list
      localagent cache list --json | jq 'map(.size) | add'
    """
    from localagent.hosts.prefix import SnapshotFolder

    folder = SnapshotFolder()
    rows = [_row(folder, path) for path in folder.files()]
    if as_json:
        show_json(rows)
        return
    if rows:
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold")
        for title in ("model", "tokens", "size", "used", "engine"):
            table.add_column(
                title, no_wrap=title != "engine", justify="right" if title in ("tokens", "size") else "left"
            )
        for row in rows:
            tokens = "not readable" if row["tokens"] is None else f"{row['tokens']:,}"
            used = row["used"][:16].replace("T", " ")
            texts = (
                flat(row["model"] or "?"),
                tokens,
                size_text(row["size"]),
                used,
                flat(row["engine"] or ""),
            )
            table.add_row(*map(cell, texts))
        show_table(table)
    total = size_text(sum(row["size"] for row in rows))
    say(f"{len(rows)} kept, {total}, in {folder.root}")


@app.command()
def clear(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove all of it. The conversations themselves stay; models have to read them again.

    \b
    Examples:
      localagent cache clear
      localagent cache clear --yes
    """
    from localagent.hosts.prefix import SnapshotFolder

    folder = SnapshotFolder()
    files = folder.files()
    if files and not (yes or agrees(f"Remove {len(files)} evaluated conversations in {folder.root}?")):
        raise typer.Exit(1)
    count, size = folder.clear()
    say(f"removed {count}, {size_text(size)}")


def _row(folder: SnapshotFolder, path: Path) -> dict[str, Any]:
    status = path.stat()
    found = folder.describe(path)
    key, tokens = found if found else (None, None)
    return {
        "model": key.name if key else None,
        "engine": key.engine if key else None,
        "tokens": tokens,
        "size": status.st_size,
        "used": datetime.fromtimestamp(status.st_mtime, UTC).isoformat(timespec="seconds"),
        "path": str(path),
    }
