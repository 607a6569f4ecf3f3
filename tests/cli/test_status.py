"""The line below an answer, and changes to files as diffs."""

from __future__ import annotations

import pytest

from localagent.cli.show.diff import diff_lines
from localagent.cli.show.status import status_line
from localagent.messages import AssistantMessage
from localagent.messages.usage import Timings, Usage


@pytest.mark.parametrize(
    ("usage", "decode", "context", "line"),
    [
        (
            Usage(input=1000, output=204, cache_read=960),
            204 / 71,
            32_768,
            "1,204/32k · 71 tok/s · 96 % cached",
        ),
        (Usage(input=1000, output=1, cache_read=999), 0.0, 4096, "1,001/4k · 99 % cached"),
        (Usage(input=7, output=2), 1.0, 1000, "9/1,000 · 2 tok/s · 0 % cached"),
        (Usage(input=7, output=2), 1.0, 200_000, "9/200k · 2 tok/s · 0 % cached"),
        (Usage(), 0.0, 4096, ""),
    ],
)
def test_n5_the_status_line(usage, decode, context, line):
    message = AssistantMessage(content="x", usage=usage, timings=Timings(decode=decode))
    assert status_line(message, context) == line


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        ("a\nb\n", "a\nc\n", ["--- f", "+++ f", "@@ -1,2 +1,2 @@", " a", "-b", "+c"]),
        (None, "a\n", ["--- (none)", "+++ f", "@@ -0,0 +1 @@", "+a"]),
        ("a\n", None, ["--- f", "+++ (none)", "@@ -1 +0,0 @@", "-a"]),
        ("a", "a\n", ["--- f", "+++ f", "@@ -1 +1 @@", "-a", "\\ No newline at end of file", "+a"]),
        ("-- x\n", "", ["--- f", "+++ f", "@@ -1 +0,0 @@", "--- x"]),
        ("a\n", "a\n", []),
    ],
)
def test_n7_a_diff(before, after, lines):
    assert list(diff_lines("f", before, after)) == lines
