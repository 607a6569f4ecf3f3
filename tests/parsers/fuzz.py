"""Coverage-guided fuzzing of the parser: `make fuzz`, or `python -m tests.parsers.fuzz [libFuzzer options]`.

Each input is an output of a model, how it is cut, which pieces are special, and which options are on. A crash
is an exception or a broken law; libFuzzer leaves the input in `crash-*`, and `python -m tests.parsers.fuzz
FILE` shows what it stood for. What is found becomes a row of the case tables.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["parsers"]):
    from parsers import DIALECTS, CallPart, StreamParser, collect
    from tests.parsers.outputs import MARKERS, TOOLS
    from tests.parsers.reading import Piece, check_run, merged, read

# Bytes below 0x80 are themselves, the others one of these: whole tokens are found faster than letter by letter.
TOKENS = (
    *MARKERS, *(marker[:-4] for marker in MARKERS), "[f(", "g(a=", ", b=", ")]", "'''", '"""', "\\u", "\\ud83d",
    "\ud83d", "\ude00", "{'k': ", '{"name": "f", "arguments": {"a": ', "```", "True", "null", "1e999", "07", "**{",
    "properties={", "f'", "r'", "\\N{DEGREE SIGN}", "é", "🌍", "it's", "\r\n",
)  # fmt: skip


def decode(data: bytes) -> tuple[list[Piece], dict[str, object]]:
    """The pieces and options that an input stands for."""
    provider = atheris.FuzzedDataProvider(data)
    options: dict[str, object] = {
        "tools": TOOLS if provider.ConsumeBool() else None,
        "inside": "reasoning" if provider.ConsumeBool() else None,
        "atomic": frozenset(MARKERS[:2]) if provider.ConsumeBool() else None,
        "strict": provider.ConsumeBool(),
    }
    flagged = provider.ConsumeBool()
    pieces: list[Piece] = []
    for byte in provider.ConsumeBytes(provider.remaining_bytes()):
        text = chr(byte) if byte < 0x80 else TOKENS[(byte - 0x80) % len(TOKENS)]
        special = (text in MARKERS and byte % 2 == 0) if flagged else None
        pieces.append((text, special))
    return pieces, options


def joined(pieces: list[Piece]) -> list[Piece]:
    """The same output in as few pieces as its flags allow."""
    result: list[Piece] = []
    for text, special in pieces:
        if result and not special and result[-1][1] is special:
            result[-1] = (result[-1][0] + text, special)
        else:
            result.append((text, special))
    return result


def run(data: bytes) -> None:
    """One input: the laws hold, however it is cut, and rendered calls read back."""
    pieces, options = decode(data)
    raw = "".join(text for text, _ in pieces)
    for dialect in DIALECTS:
        events = read(dialect, pieces, **options)
        check_run(raw, events)
        assert merged(events) == merged(read(dialect, joined(pieces), **options))
    events = read("lfm2", pieces, **options)
    calls = [(part.name, part.arguments) for part in collect(events) if isinstance(part, CallPart)]
    parser = StreamParser(DIALECTS["lfm2"])
    again = [*parser.feed(DIALECTS["lfm2"].render(calls)), *parser.close()]
    assert [(part.name, part.arguments) for part in collect(again) if isinstance(part, CallPart)] == calls


def main() -> None:
    """Show one input, or fuzz."""
    if len(sys.argv) == 2 and not sys.argv[1].startswith("-"):
        data = Path(sys.argv[1]).read_bytes()
        print(*decode(data), sep="\n")
        run(data)
        return
    atheris.Setup(sys.argv, run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
