"""Outputs that models wrote, read by the dialects: how many are read exactly, and whether a call is wrong.

    python -m benchmarks.recorded [--set lfm2,formats] [--dialect hermes,glm45] [--show] [--write]

`lfm2` and `formats` are tables of recorded outputs (`rows.py` says where they are); `canitoolcall` is the
package of that name, with its own judge (`conformance.py`). `--show` prints every output that is not read
exactly, what was read and what is right. `--write` puts the table into benchmarks/README.md.

exact     calls, content and reasoning are right
soft      they are, but for white space: the suites that the outputs come from trim it, each in its own
          way, and a dialect takes away only what the format's own template writes
refused   fewer calls than there are, none of them wrong, and what was left out is kept as malformed
missed    anything else that differs: a call read as text, a text that is another one
wrong     a call that is in no list of calls that would be right
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from typing import Any

from benchmarks.rows import ROOT, VERDICTS, Reading, Row, Verdict, judge, recorded_rows
from parsers import DIALECTS

README = ROOT / "benchmarks" / "README.md"
SUITES = ("lfm2", "canitoolcall", "formats")


def judged(suite: str, dialects: set[str]) -> Iterator[tuple[Row, Verdict, str]]:
    """The outputs of a set, each with the verdict and what differs."""
    if suite == "canitoolcall":
        from benchmarks.conformance import conformance, conformance_rows

        for row, fixture, family in conformance_rows():
            if row.dialect in dialects:
                yield row, *conformance(row, fixture, family)
    else:
        for row in recorded_rows(suite):  # type: ignore[arg-type]
            if row.dialect in dialects:
                yield row, *judge(row)


def show(row: Row, verdict: str, difference: str) -> None:
    """Print one output that is not read exactly."""
    found = Reading.of(row.read())
    settings = ", ".join(filter(None, (row.inside, row.finish != "stop" and row.finish, *sorted(row.tags))))
    print(f"\n{verdict.upper()}  {row.suite}  {row.dialect}  {row.id}  ({settings})")
    print(f"  raw       {row.raw[:600]!r}")
    print(f"  tools     {row.tools and [described(tool) for tool in row.tools]}")
    print(f"  read      {[(call.name, call.arguments) for call in found.calls]}")
    print(f"            content {found.content[:200]!r}  reasoning {found.reasoning[:200]!r}")
    for part in found.kept:
        print(f"            malformed ({part.reason}) {part.raw[:200]!r}")
    print(f"  right     {' or '.join(map(str, row.accepted))}")
    print(f"            content {row.content!r}  reasoning {row.reasoning!r}  malformed {row.malformed}")
    print(f"  differs   {difference[:400]}")


def described(tool: dict[str, Any]) -> str:
    """A tool and the types of its parameters."""
    function = tool.get("function", tool)
    properties = (function.get("parameters") or {}).get("properties") or {}
    parameters = (f"{key}: {schema.get('type', '?')}" for key, schema in properties.items())
    return f"{function['name']}({', '.join(parameters)})"


def table(counts: dict[tuple[str, str], Counter[str]]) -> str:
    """The counts as a Markdown table: each set in total, then its families."""

    def line(*cells: object) -> str:
        return f"| {' | '.join(map(str, cells))} |"

    lines = [line("set", "family", "outputs", *VERDICTS), "|---" * (3 + len(VERDICTS)) + "|"]
    for suite in dict.fromkeys(suite for suite, _ in counts):
        families = {family: count for (name, family), count in counts.items() if name == suite}
        total = sum(families.values(), Counter[str]())
        lines.append(line(suite, "all", total.total(), *(total[each] for each in VERDICTS)))
        for family, count in sorted(families.items()) if len(families) > 1 else ():
            lines.append(line("", family, count.total(), *(count[each] for each in VERDICTS)))
    return "\n".join(lines)


def write(text: str) -> None:
    """Put the table between its two comments in the README."""
    begin, end = "<!-- recorded -->\n", "<!-- end of recorded -->"
    head, rest = README.read_text().split(begin)
    README.write_text(f"{head}{begin}{text}\n{end}{rest.split(end)[1]}")


def main() -> None:
    """Parse the command line, read, print."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--set", default=",".join(SUITES), help="which sets")
    arguments.add_argument("--dialect", default=",".join(DIALECTS), help="which dialects")
    arguments.add_argument("--show", action="store_true", help="print what is not read exactly")
    arguments.add_argument("--write", action="store_true", help="put the table into benchmarks/README.md")
    options = arguments.parse_args()
    suites, dialects = options.set.split(","), set(options.dialect.split(","))
    if unknown := (dialects - set(DIALECTS)) | (set(suites) - set(SUITES)):
        arguments.error(f"unknown: {', '.join(sorted(unknown))}")
    if options.write and (dialects, suites) != (set(DIALECTS), list(SUITES)):
        arguments.error("--write is for the whole table")
    counts: dict[tuple[str, str], Counter[str]] = {}
    for suite in suites:
        for row, verdict, difference in judged(suite, dialects):
            counts.setdefault((suite, row.family), Counter())[verdict] += 1
            if options.show and verdict != "exact":
                show(row, verdict, difference)
    print(table(counts))
    if options.write:
        if missing := set(suites) - {suite for suite, _ in counts}:
            raise SystemExit(f"no outputs of {', '.join(sorted(missing))} here: nothing is written")
        write(table(counts))


if __name__ == "__main__":
    main()
