"""How what a parser read compares with what is right.

A recorded output has one of five verdicts:

exact     calls, content and reasoning are right
soft      they are, but for white space
refused   fewer calls than there are, none of them wrong, and the parser says so: by an error, or by a part
          that it keeps as malformed
missed    anything else that differs: a call that is lost, or read as text; a text that is another one
wrong     a call that is in no list of calls that would be right

An output that was rendered, or has a fault in it, is `right`, `refused` (fewer calls, whatever is said) or
`wrong`: there is a call that the model did not write.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from localagent_bench.parsers.corpora import Call, Row

Verdict = Literal["exact", "soft", "refused", "missed", "wrong"]
VERDICTS: tuple[Verdict, ...] = ("exact", "soft", "refused", "missed", "wrong")
Outcome = Literal["right", "refused", "wrong"]
OUTCOMES: tuple[Outcome, ...] = ("right", "refused", "wrong")


@dataclass(frozen=True, slots=True)
class Reading:
    """What a parser made of an output."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    kept: bool = False
    """Something was kept as malformed, or the whole was refused."""
    error: str = ""

    @property
    def key(self) -> tuple[str, str, list[str]]:
        """Equal for readings that a client cannot tell apart."""
        return self.content, self.reasoning, canonical(self.calls)


def judge(row: Row, found: Reading) -> tuple[Verdict, str]:
    """The verdict on a reading, and where it differs from what is right."""
    if (verdict := judge_calls(row, found)) != "exact":
        return verdict, found.error or f"calls {list(found.calls)}"
    if canonical(found.calls) != canonical(row.accepted[0]):
        return "exact", ""  # as good: content and reasoning are then not judged
    differing = [
        (name, is_, due)
        for name, is_, due in (
            ("content", found.content, row.content),
            ("reasoning", found.reasoning, row.reasoning),
        )
        if due is not None and is_ != due
    ]
    if not differing:
        return "exact", ""
    soft = all("".join(is_.split()) == "".join(due.split()) for _, is_, due in differing)
    told = ", ".join(f"{name} {is_!r}, due is {due!r}" for name, is_, due in differing)
    return "soft" if soft else "refused" if found.error else "missed", found.error or told


def judge_calls(row: Row, found: Reading) -> Verdict:
    """The verdict on the calls alone."""
    calls, accepted = canonical(found.calls), [canonical(each) for each in row.accepted]
    if calls in accepted:
        return "exact"
    if not any(_is_among(calls, each) for each in accepted):
        return "wrong"
    if row.tags & {"may-refuse", "may-text"}:
        return "exact"
    return "refused" if found.kept else "missed"


def judge_trip(calls: Sequence[Call], tools: Sequence[dict[str, Any]], found: Reading) -> Outcome:
    """Whether the calls that were rendered are read back.

    Formats without types cannot tell 5 from "5": there, a value of the type that the tool declares is right.
    """
    same = is_equal(tools)
    rest = iter(calls)
    for call in found.calls:
        if not any(same(call, each) for each in rest):
            return "wrong"
    return "right" if len(found.calls) == len(calls) else "refused"


def judge_fault(calls: Sequence[Call], found: Reading) -> Outcome:
    """Whether only calls were read that the model wrote, but for one edit in a name, a key or a value."""
    rest = iter(calls)
    for call in found.calls:
        if not any(is_own(call, each) for each in rest):
            return "wrong"
    return "right" if len(found.calls) == len(calls) else "refused"


Same = Callable[[Call, Call], bool]
"""Whether a call that was read is one that was written."""


def is_equal(tools: Sequence[dict[str, Any]]) -> Same:
    """The rule of `judge_trip` for single calls."""
    types = _schemas(tools)
    return lambda got, due: _equal(got, due, types.get(due[0], {}))


def _schemas(tools: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}


def strangers(calls: Sequence[Call], written: Sequence[Call], same: Same) -> list[Call]:
    """The calls that are none of those written, in the order in which these were."""
    place, strange = 0, []
    for call in calls:
        for number in range(place, len(written)):
            if same(call, written[number]):
                place = number + 1
                break
        else:
            strange.append(call)
    return strange


def canonical(calls: Sequence[Call]) -> list[str]:
    """Calls as texts that tell 1 from true, but not 1 from 1.0, which are one number in JSON."""

    def plain(value: Any) -> Any:
        match value:
            case float() if value.is_integer():
                return int(value)
            case list():
                return [plain(item) for item in value]
            case dict():
                return {key: plain(item) for key, item in value.items()}
        return value

    return [f"{name} {json.dumps(plain(arguments), sort_keys=True)}" for name, arguments in calls]


def _is_among(calls: list[str], accepted: list[str]) -> bool:
    """Whether `calls` are some of those accepted, in their order."""
    rest = iter(accepted)
    return all(call in rest for call in calls)


def _equal(got: Call, due: Call, schema: dict[str, Any]) -> bool:
    if canonical([got]) == canonical([due]):
        return True
    if got[0] != due[0] or got[1].keys() != due[1].keys():
        return False
    declared = schema.get("properties") or {}
    return all(
        canonical([("", {"": value})]) == canonical([("", {"": due[1][key]})])
        or (_text(value) == _text(due[1][key]) and _is_a(value, (declared.get(key) or {}).get("type")))
        for key, value in got[1].items()
    )


def _text(value: Any) -> str:
    text = value.strip() if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
    return text.lower() if text in ("True", "False") else text


def _is_a(value: Any, kind: Any) -> bool:
    match value:
        case bool():
            return kind in ("boolean", None)
        case int() | float():
            return kind in ("integer", "number", None)
        case str():
            return kind in ("string", None)
        case list():
            return kind in ("array", None)
        case dict():
            return kind in ("object", None)
    return kind is None


Own = Callable[[Sequence[tuple[str, str]]], bool]
"""Whether words that differ, as read and as meant, are the model's own: what the fault has made of them."""


def edited(words: int, edits: int) -> Own:
    """So many words may differ, by so many edits in sum."""

    def own(differing: Sequence[tuple[str, str]]) -> bool:
        return len(differing) <= words and sum(_edits(*pair, edits) for pair in differing) <= edits

    return own


def folded(fold: Callable[[str], str]) -> Own:
    """All words may differ, but not once they are folded; case is that of a parser's true and false."""
    return lambda differing: all(fold(word.lower()) == fold(meant.lower()) for word, meant in differing)


ONE_EDIT = edited(1, 1)


def is_own(got: Call, due: Call, own: Own = ONE_EDIT) -> bool:
    """Whether it is the same call, but for words that are the model's own: one of them, with one edit in it.

    Types do not count: a lost quote can make a number of a string, and the values of a misspelled tool or key
    have no declared type.
    """
    found = list(_differences({got[0]: got[1]}, {due[0]: due[1]}))
    pairs = [pair for pair in found if pair is not None]
    return len(pairs) == len(found) and own(pairs)


def _differences(got: Any, due: Any) -> Iterator[tuple[str, str] | None]:
    """Each word that differs, with the right one; None for anything else that differs."""
    if isinstance(got, str) and isinstance(due, dict | list):
        with suppress(ValueError, RecursionError):
            got = json.loads(got)
    match got, due:
        case dict(), dict():
            here, there = [key for key in got if key not in due], [key for key in due if key not in got]
            if len(here) != len(there):
                yield None
                return
            for key in got.keys() & due.keys():
                yield from _differences(got[key], due[key])
            for key, right in zip(here, there, strict=True):
                yield key, right
                yield from _differences(got[key], due[right])
        case list(), list() if len(got) == len(due):
            for item, right in zip(got, due, strict=True):
                yield from _differences(item, right)
        case (dict() | list(), _) | (_, dict() | list()):
            yield None
        case _:
            text, right = (value if isinstance(value, str) else json.dumps(value) for value in (got, due))
            if _word(text) != _word(right) and not _same_number(_word(text), _word(right)):
                yield text, right


def _word(text: str) -> str:
    """A word as it stands in an output; an edit of an escape sequence is one edit, too."""
    return text.lower().replace("\\", "").replace("\n", "n").replace("\t", "t")


def _edits(text: str, right: str, most: int) -> int:
    """How many edits a word is from another one; more than `most` if they are more than that."""
    word, meant = _word(text), _word(right)
    if "e" in word + meant and _is_number(word) and _is_number(meant):
        return 1  # an edit of an exponent changes every digit of the number that is read
    return next((edits for edits in range(most + 1) if _are_near(word, meant, edits)), most + 1)


def _are_near(a: str, b: str, edits: int) -> bool:
    """At most so many edits apart."""
    if abs(len(a) - len(b)) > edits:
        return False
    same = next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    a, b = a[same:], b[same:]
    ways = (a[1:], b), (a, b[1:]), (a[1:], b[1:])
    return a == b or (edits > 0 and any(_are_near(*way, edits - 1) for way in ways))


def _same_number(a: str, b: str) -> bool:
    return _is_number(a) and _is_number(b) and float(a) == float(b)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def contradicts(call: Call, tools: Sequence[dict[str, Any]], markup: Sequence[str]) -> bool:
    """Whether the declared tools contradict a call, so that a parser which knows them could have known.

    An undeclared name or key, a required one that is missing, a value of another type or none of an enum;
    and `markup` in a value: no model of the format can spell that there.
    """
    name, arguments = call
    schema = _schemas(tools).get(name)
    if schema is None or arguments.keys() - (schema.get("properties") or {}).keys():
        return True
    text = json.dumps(arguments, ensure_ascii=False).replace('\\"', '"')
    return _is_unfit(arguments, schema) or any(mark in text for mark in markup)


def _is_unfit(value: Any, schema: Any) -> bool:
    """By the keywords that nearly all tools use; what others say is not looked at."""
    if not isinstance(schema, dict):
        return False
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds] if kinds else []
    whole = not isinstance(value, float) or value.is_integer()
    if kinds and not any(_is_a(value, kind) and (whole or kind != "integer") for kind in kinds):
        return value is not None or "null" not in kinds
    if "enum" in schema and value not in schema["enum"]:
        return True
    match value:
        case dict():
            declared = schema.get("properties") or {}
            missing = set(schema.get("required") or ()) - value.keys()
            return bool(missing) or any(_is_unfit(item, declared.get(key)) for key, item in value.items())
        case list():
            return any(_is_unfit(item, schema.get("items")) for item in value)
    return False
