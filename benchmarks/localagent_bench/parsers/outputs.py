"""Calls as models write them, cut into pieces as hosts send them, and with faults in them.

Calls are written by the dialect's own renderer, in each notation that it has, and by chat templates: what a
template adds to a conversation for a turn with calls is what the model was trained to write.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from localagent.parsers import DIALECTS
from localagent_bench.parsers.corpora import AskedCalls, Call, Tools

CUTS = ("1", "2", "3", "7", "token", "random")
"""How an output is cut: every so many characters, at the borders of tokens, or at random."""
FAULTS = ("lost", "doubled", "changed", "quote", "cut", "marker", "twice", "draft")
FAULTS_TOLD = (
    "lost, doubled, changed: one character; quote: a quote dropped; cut: the output ends anywhere; marker: "
    "the format's own marker inside a string; twice: the block repeated; draft: other calls of declared "
    "tools written in the reasoning before"
)
PROMPTED = {"harmony": "<|start|>assistant", "muse": "<|start|>assistant"}
"""What the prompt ends with, where a rendered turn begins with it."""
_NO_DRAFTS = frozenset({"harmony", "muse", "solar-open2"})
"""Formats in which a call ends the reasoning by its own marker: what would be a draft is a call."""
_CHARACTERS = "aeknrst_-\"',:=)]}>"
_PLACEHOLDER = "qzxplaceqzx"


@dataclass(frozen=True, slots=True)
class Output:
    """Calls as they were written. `how`: the notation, or the template."""

    dialect: str
    how: str
    text: str
    calls: list[Call]
    tools: Tools
    id: str
    finish: str = "stop"
    inside: str | None = None
    template: str | None = None

    def request(
        self, pieces: Sequence[str] | None = None, special: Sequence[bool] | None = None
    ) -> dict[str, Any]:
        """What a parser is asked, for the whole text or in pieces. `special`: which of these are special
        tokens, if it is told.
        """
        asked: dict[str, Any] = {"dialect": self.dialect, "tools": self.tools, "finish": self.finish}
        if self.inside:
            asked["inside"] = self.inside
        if self.template:
            asked["template"] = self.template
        if special is not None:
            asked["special"] = [*special]
        return asked | ({"text": self.text} if pieces is None else {"chunks": list(pieces)})


def rendered(dialect: str, tasks: Sequence[AskedCalls]) -> Iterator[Output]:
    """The calls of each task in each notation of the dialect. What a format cannot hold is left out."""
    table = DIALECTS[dialect]
    for task in tasks:
        for notation in table.renderers:
            for calls in (task.calls, task.calls[:1]):  # of several calls the first, where a turn holds one
                try:
                    text = table.render(calls, notation)
                except ValueError:
                    continue
                text = text.removeprefix(PROMPTED.get(dialect, ""))
                yield Output(dialect, notation, text, calls, task.tools, f"{task.id}, {notation}")
                break


@dataclass(frozen=True, slots=True)
class ModelTemplate:
    """A chat template that writes calls in a dialect that is known."""

    name: str
    dialect: str
    source: str


def model_templates(folder: Path) -> list[ModelTemplate]:
    """The templates in a folder whose calls a dialect reads; the others are left out."""
    from localagent.detection import detect_dialect
    from localagent.prompt.probe import probe_calls

    found = []
    for path in sorted(folder.glob("*.jinja")):
        source = path.read_text(encoding="utf-8", errors="replace")
        name = detect_dialect(frozenset(), template=source).name
        if name in DIALECTS and DIALECTS[name].renderers and any(probe_calls(source)):
            found.append(ModelTemplate(path.stem, name, source))
    return found


def templated(template: ModelTemplate, tasks: Sequence[AskedCalls]) -> Iterator[Output]:
    """The turns that a template writes for the calls of each task."""
    from localagent.errors import TemplateFailed
    from localagent.prompt import ChatTemplate
    from localagent.prompt.probe import probe

    try:
        chat = ChatTemplate(template.source, "", "", ())
        support = probe(lambda turns: chat.render(turns, [], add_generation_prompt=False).text)
    except TemplateFailed:
        return
    asked = {"role": "user", "content": "question"}
    ends = DIALECTS[template.dialect].ends
    for task in tasks:
        for calls in (task.calls, task.calls[:1]):
            turn = {
                "role": "assistant",
                "content": None if support.none_content else "",
                "tool_calls": [
                    {
                        "id": f"call{at:05}",
                        "type": "function",
                        "function": {
                            "name": name,
                            "arguments": json.dumps(given) if support.text_arguments else given,
                        },
                    }
                    for at, (name, given) in enumerate(calls)
                ],
            }
            names = Counter(name for name, _ in calls)
            try:
                before = chat.render([asked], task.tools, add_generation_prompt=True).text
                after = chat.render([asked, turn], task.tools, add_generation_prompt=False).text
            except TemplateFailed:
                continue
            text = after[len(before) :]
            # Some templates show only the first of several calls.
            if not after.startswith(before) or any(text.count(name) < often for name, often in names.items()):
                continue
            printed = text.rstrip("\n")  # a host does not print the end of the turn
            text = next((printed.removesuffix(end) for end in ends if printed.endswith(end)), text)
            inside = "reasoning" if _opens_reasoning(template.dialect, before) else None
            identity = f"{task.id}, {template.name}"
            yield Output(
                template.dialect,
                template.name,
                text,
                calls,
                task.tools,
                identity,
                "stop",
                inside,
                template.name,
            )
            break


def _opens_reasoning(dialect: str, prompt: str) -> bool:
    span = DIALECTS[dialect].reasoning
    return span is not None and bool(span.open) and prompt.rstrip().endswith(span.open.rstrip())


def cut(text: str, how: str, dialect: str, draw: random.Random) -> list[str]:
    """A text in pieces."""
    if how == "token":
        return _tokens(dialect)(text)
    if how == "random":
        pieces, at = [], 0
        while at < len(text):
            step = draw.randint(1, 12)
            pieces.append(text[at : at + step])
            at += step
        return pieces
    return [text[at : at + int(how)] for at in range(0, len(text), int(how))]


@cache
def _tokens(dialect: str) -> Callable[[str], list[str]]:
    """How a text falls into tokens: markers are tokens, and the rest is split as lfm2-nano's vocabulary does.

    Without the package tokenizers each word, sign and stretch of white space stands for a token.
    """
    markers = sorted(DIALECTS[dialect].markers, key=len, reverse=True)
    between = re.compile(f"({'|'.join(map(re.escape, markers))})") if markers else re.compile("(?!)()")
    split: Callable[[str], list[str]] = re.compile(r"\s?\w+|\s+|[^\w\s]").findall
    try:
        from tokenizers import Tokenizer  # type: ignore[import-not-found,unused-ignore]

        from localagent import nano

        weights = Path(nano.__file__).parent / "weights" / "mlx" / "tokenizer.json"
        tokenizer = Tokenizer.from_file(str(weights))
    except (ImportError, OSError):
        pass
    else:

        def split(text: str) -> list[str]:
            ends = sorted(
                {end for _, end in tokenizer.encode(text, add_special_tokens=False).offsets} | {len(text)}
            )
            starts = [0, *ends[:-1]]
            return [text[start:end] for start, end in zip(starts, ends, strict=True) if end > start]

    def pieces(text: str) -> list[str]:
        parts = [part for part in between.split(text) if part]
        return [piece for part in parts for piece in ([part] if part in markers else split(part))]

    return pieces


def tokens(text: str, dialect: str) -> list[tuple[str, bool]]:
    """A text in tokens, each with whether it is a special one."""
    between, special = _special(dialect)
    return [
        (piece, part in special)
        for part in filter(None, between.split(text))
        for piece in ([part] if part in special else _tokens(dialect)(part))
    ]


@cache
def _special(dialect: str) -> tuple[re.Pattern[str], frozenset[str]]:
    """The special tokens of a format: of its markers those that vocabularies flag as such, and the tokens in
    others. A marker that holds one of these is written in several tokens.
    """
    table = DIALECTS[dialect]
    within = {table.cores.get(marker, marker) for marker in table.markers if marker not in table.shown} - {""}
    special = [token for token in within if not any(other != token and other in token for other in within)]
    between = "|".join(map(re.escape, sorted(special, key=len, reverse=True)))
    return re.compile(f"({between})" if special else "(?!)()"), frozenset(special)


def with_fault(output: Output, fault: str, other: AskedCalls, draw: random.Random) -> Output | None:
    """The output with a fault in it; None where there is no place for one. `other` has the draft."""
    text = output.text
    at = draw.randrange(len(text)) if text else 0
    match fault:
        case "lost" | "doubled" | "changed" if text:
            put = {"lost": "", "doubled": text[at] * 2, "changed": draw.choice(_CHARACTERS)}[fault]
            return replace(output, text=text[:at] + put + text[at + 1 :])
        case "quote":
            places = [place for place, char in enumerate(text) if char in "\"'"]
            if places:
                at = draw.choice(places)
                return replace(output, text=text[:at] + text[at + 1 :])
        case "cut" if text:
            return replace(output, text=text[:at], finish="length")
        case "marker":
            return _with_marker(output, draw)
        case "twice":
            return replace(output, text=text + text)
        case "draft":
            return with_draft(output, other)
    return None


def _with_marker(output: Output, draw: random.Random) -> Output | None:
    """A marker in a string, as a model writes it that is asked about its own format."""
    table = DIALECTS[output.dialect]
    strings = [
        (at, key)
        for at, (_, given) in enumerate(output.calls)
        for key, value in given.items()
        if isinstance(value, str)
    ]
    markers = (
        [mark for mark in (table.calls.open, table.calls.close) if mark in table.markers]
        if table.calls
        else []
    )
    if not strings or not markers or output.how not in table.renderers:
        return None
    (at, key), marker = draw.choice(strings), draw.choice(markers)

    def calls(put: str) -> list[Call]:
        name, given = output.calls[at]
        return [*output.calls[:at], (name, {**given, key: f"see {put} here"}), *output.calls[at + 1 :]]

    try:
        text = table.render(calls(_PLACEHOLDER), output.how)
    except ValueError:
        return None
    return replace(output, text=text.replace(_PLACEHOLDER, marker), calls=calls(marker))


def with_draft(output: Output, other: AskedCalls, draw: random.Random | None = None) -> Output | None:
    """The first call of another task in reasoning before the output; cut off anywhere if `draw` is given."""
    table = DIALECTS[output.dialect]
    span = table.reasoning
    if (
        span is None
        or output.dialect in _NO_DRAFTS
        or output.inside
        or not {span.open, span.close} <= {*table.markers}
    ):
        return None
    try:
        draft = table.render(other.calls[:1], output.how if output.how in table.renderers else None)
    except ValueError:
        return None
    if other.calls[:1] == output.calls[:1]:
        return None
    if draw is not None:
        draft = draft[: draw.randrange(1, len(draft))]
    names = {tool["function"]["name"] for tool in output.tools}
    more = [tool for tool in other.tools if tool["function"]["name"] not in names]
    before = "".join((span.open, *span.after_open[:1], "Perhaps ", draft, " No: that is not what they want.",
                      *span.before_close[:1], span.close, *span.after_close[:1]))  # fmt: skip
    return replace(output, text=before + output.text, tools=[*output.tools, *more])
