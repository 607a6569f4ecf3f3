"""The dialect that a model writes, from its weights: chat template, vocabulary and architecture."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace
from pathlib import Path

from localagent.detection.finding import CONTROL
from localagent.detection.guessing import Explanation, explain
from localagent.parsers import DIALECTS, Dialect
from localagent.parsers.custom import InvalidDialect, load_declared
from localagent.parsers.engine.spans import NOWHERE
from localagent.parsers.formats.token_pairs import labelled
from localagent.prompt.probe import ARGUMENTS, NAME, TOOL, Written, probe_calls
from localagent.prompt.thinking import opens_reasoning

_ENDS = {end for dialect in DIALECTS.values() for end in dialect.ends}
_FAMILIES = {"lfm2": "lfm2", "smollm3": "smollm3"}
"""The architectures, by the beginning of their names, whose models are known to write one dialect.

Only those are needed here whose chat templates show no calls.
"""
_LABEL = re.compile(r"<tool_calls(:[^\s<>]+)>")
"""A tag of Hunyuan's, with the label that a checkpoint appends to all of them."""
_END = re.compile(f"{CONTROL.pattern}|{'|'.join(map(re.escape, sorted(_ENDS, key=len, reverse=True)))}")


def detect_dialect(
    special_tokens: AbstractSet[str],
    architecture: str = "",
    template: str | None = None,
    declared: Dialect | None = None,
) -> Dialect:
    """The dialect of a model: by its vocabulary, its architecture, and what its chat template writes.

    `declared` is the one that the model itself declares (see `declared_in`). A known dialect comes first: it
    reads what models of its family write by mistake, too, of which a declaration says nothing.

    1. The template renders a known call. Of the dialects that read exactly this call from the result, with
       nothing malformed, the one that would write it most similarly wins, and it keeps the template's
       notation. Only if there is none, the declared one is asked. If the template shows the call but no
       dialect reads it, the model's format is unknown, whatever its vocabulary holds. A call without markers
       must be all that the template writes: text around it would be markers of an unknown format.
    2. The vocabulary narrows the choice: a dialect is likely if its call markers are special tokens. This
       alone does not decide, since families share markers, and vocabularies have some that a model never
       learned.
    3. The architecture decides if its models are known to write one dialect and the vocabulary allows it.
    4. If the template writes no calls, as LFM2's official ones, it may mention the markers of a likely
       dialect, perhaps in its instructions.
    5. What the model declares counts before guesses: a dialect that is only likely, or only mentioned.

    If nothing fits, the dialect is `plain`, which reads no calls.
    """
    dialects = (*DIALECTS.values(), *_labelled(special_tokens))
    written = tuple(probe_calls(template)) if template else ()
    if written:
        for candidates in (dialects, () if declared is None else (declared,)):
            best = max(_explanations(written, candidates), key=lambda read: read.merit, default=None)
            if best is not None:
                return _with_notation(best.dialect, best.notation)
        return DIALECTS["plain"]
    likely = [dialect for dialect in dialects if _in_vocabulary(dialect, special_tokens)]
    for family, name in _FAMILIES.items():
        known = DIALECTS.get(name)
        if known is not None and architecture.startswith(family) and (not likely or known in likely):
            return known
    mentioned = [dialect for dialect in likely or DIALECTS.values() if _mentioned(dialect, template or "")]
    if declared is not None and not (likely and mentioned):
        return declared
    found = mentioned or likely
    return max(found, key=lambda dialect: _spelled_out(dialect, special_tokens), default=DIALECTS["plain"])


def _labelled(special_tokens: AbstractSet[str]) -> Iterator[Dialect]:
    """The dialects of Hunyuan with the label of this vocabulary, if no dialect has that."""
    known = {dialect.calls.open for dialect in DIALECTS.values() if dialect.calls}
    for token in sorted(special_tokens - known):
        if found := _LABEL.fullmatch(token):
            yield from labelled(found[1])


def declared_in(path: Path) -> Dialect | None:
    """The dialect that the model in that folder declares in its tokenizer's configuration, if there is one.

    None as well for a declaration that cannot be read here, since most models can do without: `find_declared`
    says what is wrong with it. GGUF files have none.
    """
    try:
        return load_declared(path) if path.is_dir() else None
    except InvalidDialect:
        return None


def _with_notation(dialect: Dialect, notation: str) -> Dialect:
    """The dialect, which writes in that notation unless another is asked for."""
    if notation == next(iter(dialect.renderers), notation):
        return dialect
    return replace(dialect, renderers={notation: dialect.renderers[notation], **dialect.renderers})


def _explanations(written: Iterable[Written], dialects: Iterable[Dialect]) -> Iterator[Explanation]:
    """How each of `dialects` reads the call that was written, if it does."""
    for probed in written:
        for dialect in dialects:
            opened = opens_reasoning(dialect, probed.prompt)
            read = explain(probed.text, dialect, [TOOL], "reasoning" if opened else None)
            if read.calls == [(NAME, ARGUMENTS)] and not read.malformed and not _between_others(read):
                yield read


def _between_others(read: Explanation) -> bool:
    """Whether a call that stands between no markers of its dialect stands between something else."""
    before, behind = read.around
    return not read.marked and bool(before.strip() or _END.sub("", behind).strip())


def _in_vocabulary(dialect: Dialect, special_tokens: AbstractSet[str]) -> bool:
    """Whether the tokens in the markers of its calls are special ones."""
    tokens = {dialect.cores.get(marker, marker) for marker in _markers(dialect)} - {""}
    return bool(tokens) and special_tokens >= tokens


def _mentioned(dialect: Dialect, template: str) -> bool:
    markers = _markers(dialect)
    return bool(markers) and all(marker in template for marker in markers)


def _markers(dialect: Dialect) -> set[str]:
    """The markers around its calls, without a closing one that ends the turn."""
    calls = dialect.calls or NOWHERE
    return {*calls.markers} - {*dialect.ends, NOWHERE.close}


def _spelled_out(dialect: Dialect, special_tokens: AbstractSet[str]) -> tuple[int, int]:
    """How many of the markers of its calls are special tokens, and how many of all."""
    of_calls = sum(marker in special_tokens for marker in (*_markers(dialect), *dialect.inner))
    return of_calls, sum(marker in special_tokens for marker in dialect.markers)
