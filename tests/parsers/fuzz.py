"""Outputs at random, in every dialect and against every law: `make fuzz`.

    python -m tests.parsers.fuzz [--count 20000 | --seconds 60] [--seed 1] [--dialects hermes,glm45]
    python -m tests.parsers.fuzz --guided [options of libFuzzer]
    python -m tests.parsers.fuzz FILE

The first takes the dialects in turn and says how many outputs it read in a second, and in how many of them each
dialect found calls. The second has atheris choose what reaches new code, and says the same from time to time. A find is an exception or a broken law: its input is left in `crash-*`, and the third shows what that
stood for. What is found becomes a row of the case tables. Cost (law 7) is measured in test_adversarial.py.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import signal
import sys
import tempfile
from collections import Counter
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from time import perf_counter

GUIDED = "--guided" in sys.argv
if GUIDED:
    import atheris

with atheris.instrument_imports(include=["parsers"]) if GUIDED else nullcontext():
    from parsers import DIALECTS, CallEnd, Malformed
    from tests.parsers.outputs import (
        GENERAL,
        TOOLS,
        declaring,
        rows,
        samples,
        tokens,
        unmarked,
        with_spaces,
        written,
    )
    from tests.parsers.reading import Piece, calls_of, canonical, characters, check_run, exact, read, whole
    from tests.parsers.test_laws import (
        check_a_call_counts_only_when_it_is_complete,
        check_markers_do_not_leak,
        check_nothing_is_taken_back,
        check_spelled_markers_are_data,
        check_text_is_held_only_while_it_may_be_a_marker,
    )

NAMES = tuple(DIALECTS)
HANGS = 60
"""Seconds that one output may take."""

OUTPUTS: Counter[str] = Counter()
WITH_CALLS: Counter[str] = Counter()
WITH_MALFORMED: Counter[str] = Counter()


@cache
def texts(name: str) -> tuple[str, ...]:
    """What outputs of a dialect are put together from: calls and rows as a whole, and their pieces."""
    markers = DIALECTS[name].markers
    cut = (marker[:-2] for marker in markers)
    pieces = (*markers, *cut, *with_spaces(name), *tokens(name), *GENERAL)
    # Whole calls are few, and without them hardly any output has one.
    return (*pieces, *rows(name), *samples(name) * (len(pieces) // 20 + 1))


class Draws:
    """Choices, each made by a byte or two; the first one where there are no more."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def below(self, limit: int) -> int:
        """A number from 0 to `limit` - 1."""
        size = 1 if limit <= 256 else 2
        taken = self._data[self._at : self._at + size]
        self._at += size
        return int.from_bytes(taken, "big") % limit


def decode(data: bytes) -> tuple[str, list[Piece], dict[str, object], list[int]]:
    """The dialect, the pieces, the options and the places to cut at that an input stands for.

    Of the bytes that make the text, those below 0x60 put a character there, those from 0xf0 on change one that is
    there, and the others, with the next, put one of the dialect's own texts.
    """
    draws = Draws(data)
    name = NAMES[draws.below(len(NAMES))]
    markers, own = DIALECTS[name].markers, texts(name)
    switches = draws.below(256)
    options: dict[str, object] = {
        "tools": TOOLS if switches & 1 else None,
        "inside": "reasoning" if switches & 2 and DIALECTS[name].reasoning is not None else None,
        "atomic": frozenset(markers[::2]) if switches & 12 == 12 else None,
        "strict": switches & 48 == 48,
    }
    flagged = switches & 192 == 192
    cuts = [draws.below(400) for _ in range(2)]
    pieces: list[Piece] = []
    while draws:
        kind = draws.below(256)
        if kind < 0x60:
            pieces.append((chr(kind + 0x20), False if flagged else None))
        elif kind < 0xF0 or not pieces:
            text = own[draws.below(len(own))]
            special = text in markers and kind % 4 != 0
            pieces.append((text, special if flagged else None))
        else:
            at = draws.below(len(pieces))
            text, special = pieces[at]
            if text and not special:
                place = draws.below(len(text))
                put = ("", text[place] * 2, "aeknrst_-\"',:=)]}>"[draws.below(18)])[kind % 3]
                pieces[at] = (text[:place] + put + text[place + 1 :], special)
    return name, [piece for piece in pieces if piece[0]], options, cuts


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
    """One input: the laws hold, however it is cut, and its calls, rendered, read back."""
    name, pieces, options, cuts = decode(data)
    raw = "".join(text for text, _ in pieces)
    events = read(name, pieces, **options)
    check_run(raw, events)
    expected = exact(events)
    for finish, other in (("stop", joined(pieces)), ("length", joined(pieces)), ("stop", finer(pieces))):
        assert exact(read(name, other, finish, **options)) == expected
    if not any(special is not None for _, special in pieces):
        check_nothing_is_taken_back(name, raw, cuts[0] % (len(raw) + 1), options)
    check_markers_do_not_leak(name, raw)
    marked = raw.translate(str.maketrans("", "", unmarked(name)))
    check_text_is_held_only_while_it_may_be_a_marker(name, marked)
    check_spelled_markers_are_data(name, marked)
    found = list(dict(calls_of(events)).items())
    if DIALECTS[name].renderers and found:
        calls, text = written(name, found)
        again = read(name, whole(text), tools=declaring(calls))
        assert canonical(calls_of(again)) == canonical(calls)
        check_a_call_counts_only_when_it_is_complete(name, calls, text[: cuts[1] % len(text)])
    OUTPUTS[name] += 1
    WITH_CALLS[name] += any(isinstance(event, CallEnd) for event in events)
    WITH_MALFORMED[name] += any(isinstance(event, Malformed) for event in events)


def finer(pieces: list[Piece]) -> list[Piece]:
    """The same output by characters, special tokens apart."""
    return [
        (part, special)
        for text, special in pieces
        for part, _ in ([(text, None)] if special else characters(text))
    ]


def report(seconds: float) -> None:
    """How many outputs were read, and what was in them."""
    print(f"\n{'dialect':<18}{'outputs':>9}{'with calls':>12}{'with malformed':>16}")
    for name in NAMES:
        if OUTPUTS[name]:
            shares = (WITH_CALLS[name] / OUTPUTS[name], WITH_MALFORMED[name] / OUTPUTS[name])
            print(f"{name:<18}{OUTPUTS[name]:>9,}{shares[0]:>12.0%}{shares[1]:>16.0%}")
    count = OUTPUTS.total()
    print(f"{count:,} outputs in {seconds:.0f} s, {count / seconds:,.0f} in a second", flush=True)


def hangs(*_: object) -> None:
    raise TimeoutError(f"one output took more than {HANGS} seconds")


def at_random(count: int | None, limit: float, seed: int, names: list[str]) -> None:
    """So many outputs, or as many as there is time for; the dialects in turn."""
    signal.signal(signal.SIGALRM, hangs)
    draw, started, done = random.Random(seed), perf_counter(), 0
    weights = [1] * 0x60 + [4] * 0x90 + [8] * 0x10
    while done < count if count is not None else perf_counter() - started < limit:
        signal.alarm(HANGS)
        length = draw.randint(1, 40)
        body = bytes(draw.choices(range(256), weights, k=length))
        data = bytes([NAMES.index(names[done % len(names)]), *draw.randbytes(5)]) + body
        try:
            run(data)
        except Exception:
            file = Path(f"crash-{hashlib.sha1(data).hexdigest()}")
            file.write_bytes(data)
            print(f"after {done:,} outputs: python -m tests.parsers.fuzz {file}", file=sys.stderr)
            raise
        done += 1
    signal.alarm(0)
    report(perf_counter() - started)


def guided(options: list[str]) -> None:
    """Begin with calls in each dialect, so that none is left to chance; report whenever the count has doubled."""
    started, due = perf_counter(), 1024

    def run_and_report(data: bytes) -> None:
        nonlocal due
        run(data)
        if (total := OUTPUTS.total()) == due:
            due = 2 * total
            report(perf_counter() - started)

    with tempfile.TemporaryDirectory() as corpus:
        for place, name in enumerate(NAMES):
            last = len(texts(name)) - 1
            calls = last.to_bytes(1 if last < 256 else 2, "big")
            (Path(corpus) / name).write_bytes(bytes([place, *[0] * 5, 0x60]) + calls)
        # Without it, libFuzzer would try short inputs alone for a long while.
        atheris.Setup([sys.argv[0], "-len_control=0", *options, corpus], run_and_report)
        atheris.Fuzz()


def main() -> None:
    """Show one input, or fuzz."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument(
        "--count", type=int, help="how many outputs; as many as there is time for if left out"
    )
    arguments.add_argument("--seconds", type=float, default=60)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--dialects", default=",".join(NAMES))
    arguments.add_argument(
        "--guided", action="store_true", help="by atheris; what else is given is libFuzzer's"
    )
    arguments.add_argument("file", nargs="?", type=Path, help="an input to show and to run once more")
    options, others = arguments.parse_known_args()
    names = options.dialects.split(",")
    if unknown := [name for name in names if name not in NAMES]:
        arguments.error(f"unknown: {', '.join(unknown)}")
    if options.guided:
        guided(others)
    elif others:
        arguments.error(f"unknown: {' '.join(others)}")
    elif options.file:
        data = options.file.read_bytes()
        print(*decode(data), sep="\n")
        run(data)
    else:
        at_random(options.count, options.seconds, options.seed, names)


if __name__ == "__main__":
    main()
