"""What people see, scene by scene: kept as text in screens/, for the tests, and as pictures for the README.

python -m tests.cli.terminal.scenes    writes them anew; look at what changed before you keep it
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.agent.replaying import block
from tests.cli.terminal.screen import Terminal, program

SCREENS = Path(__file__).parent / "screens"
WIDTHS = (40, 80, 120)
_UNSTEADY = (
    (re.compile(r"[\d,]+ tok/s"), "71 tok/s"),
    (re.compile(r"\d+ s · "), "2 s · "),
)
"""What is another number each time."""

ANSWER = """\
# Three ways to sort

Python sorts **in place** with `list.sort`, or into a new list with `sorted`; both are *stable*.

1. `sorted(words)` compares letter by letter, so that capitals come first.
2. `sorted(words, key=str.casefold)` is what people expect of a list of names.
3. `heapq.nsmallest(3, words)` needs no more than three of them at a time.

```python
def by_length(words: list[str]) -> list[str]:
    \"\"\"The shortest first; equal ones keep their order.\"\"\"
    return sorted(words, key=len)  # O(n log n)
```

| way | memory | stable |
|-----|-------:|--------|
| `sort` | n/2 | yes |
| `nsmallest` | k | yes |

> Measure before you choose, says [the manual](https://docs.python.org/3/howto/sorting.html).
"""
THINKING = "<think>They want one sentence. I should be careful about the blue light.</think>"
BLUE = "Air scatters *short* waves more than long ones, so the blue part of sunlight reaches you from everywhere."


def answer(terminal: Terminal) -> None:
    """A run whose answer is Markdown."""
    terminal.end()


def chat(terminal: Terminal) -> None:
    """A chat with a model that thinks."""
    terminal.wait("^>$")
    terminal.type("Why is the sky blue?\r")
    terminal.wait(r"everywhere\.\n.*cached\n>$")


def approval(terminal: Terminal) -> None:
    """A call that would change a file."""
    terminal.wait("^>$")
    terminal.type("Plan the garden.\r")
    terminal.wait(r"\[s\]top")
    terminal.settle()


WRITES = block('write_file(path="garden.txt", content="beans\\npeas\\nroses along the wall\\n")')
SCENES: dict[str, tuple[Callable[[Terminal], None], tuple[str, ...], tuple[str, ...]]] = {
    "answer": (answer, ("run", "How do I sort words?"), (ANSWER,)),
    "chat": (chat, ("chat", "--no-save"), (THINKING + BLUE,)),
    "approval": (
        approval,
        ("chat", "--no-save", "--tools", "write", "--root", "{root}"),
        ("I change the plan." + WRITES, "Done."),
    ),
}
"""What to do, the command, and what the model writes."""


@contextmanager
def played(name: str, columns: int, folder: Path) -> Iterator[Terminal]:
    """The terminal at the end of a scene."""
    play, arguments, outputs = SCENES[name]
    root = folder / "root"
    root.mkdir()
    (root / "garden.txt").write_text("beans\nradishes\nroses\n")
    words = [word.format(root=root) for word in arguments]
    line, settings = program(folder, words, outputs, size=3)
    with Terminal(line, settings, columns=columns, rows=24) as terminal:
        play(terminal)
        yield terminal


def steady(lines: list[str]) -> str:
    """The screen as a text that is the same each time."""
    text = "\n".join(lines) + "\n"
    for pattern, constant in _UNSTEADY:
        text = pattern.sub(constant, text)
    return text


def picture(terminal: Terminal, title: str) -> str:
    """The screen as an SVG."""
    import io

    from rich._export_format import CONSOLE_SVG_FORMAT
    from rich.console import Console
    from rich.text import Text

    cells = terminal.cells
    console = Console(record=True, width=len(cells[0]), file=io.StringIO(), force_terminal=True)
    for row in cells:
        written = "".join(cell.data for cell in row).rstrip()
        text = Text()
        if steady([written]) != f"{written}\n":
            console.print(Text(steady([written]).rstrip(), "dim"))
            continue
        for cell in row:
            colour = cell.fg.replace("bright", "bright_").replace("brown", "yellow").replace("default", "")
            style = [name for name in ("bold", "italics", "underscore") if getattr(cell, name)]
            names = {"italics": "italic", "underscore": "underline"}
            text.append(
                cell.data, " ".join([*(names.get(each, each) for each in style), colour or ""]).strip()
            )
        console.print(text, no_wrap=True, overflow="crop")
    # Without the fonts that rich would fetch from somewhere.
    form = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    return console.export_svg(title=title, code_format=form, unique_id="screen")


def main() -> None:
    """Write all screens, and a picture of each at 80 columns."""
    SCREENS.mkdir(exist_ok=True)
    for name in SCENES:
        for columns in WIDTHS:
            with tempfile.TemporaryDirectory() as folder, played(name, columns, Path(folder)) as terminal:
                (SCREENS / f"{name}-{columns}.txt").write_text(steady(terminal.lines))
                if columns == 80:
                    words = " ".join(SCENES[name][1][:2])
                    (SCREENS / f"{name}.svg").write_text(picture(terminal, f"localagent {words}"))


if __name__ == "__main__":
    main()
