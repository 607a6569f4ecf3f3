"""Small faults in a source file, most of them made by mutmut, and a seeded sample of them: see tests/mutants.py."""

from __future__ import annotations

import ast
import difflib
import hashlib
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import libcst as cst
import libcst.matchers as m
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation import mutators

PACKAGES = ("localagent", "parsers", "benchmarks/localagent_bench")


def sources(root: Path) -> list[str]:
    """The files that faults are put into."""
    paths = (path for name in PACKAGES for path in (root / name).rglob("*.py"))
    # What trains lfm2-nano needs torch, and no test runs it.
    return sorted(path.relative_to(root).as_posix() for path in paths if path.parent.name != "training")


def negated(node: cst.If | cst.While) -> Iterator[cst.CSTNode]:
    """`if a:` becomes `if not a:`; mutmut takes a `not` away, and puts none in."""
    if not m.matches(node.test, m.UnaryOperation(operator=m.Not())):
        test = node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        yield node.with_changes(test=cst.UnaryOperation(cst.Not(), test))


def dropped(node: cst.Expr | cst.Raise) -> Iterator[cst.CSTNode]:
    """A statement that is not there."""
    if not m.matches(node, m.Expr(m.SimpleString() | m.ConcatenatedString() | m.Ellipsis())):
        yield cst.Pass()


def returned(node: cst.Return) -> Iterator[cst.CSTNode]:
    """`return a` becomes `return None`. For False that changes nothing: `return True` is made elsewhere."""
    if node.value and not m.matches(node.value, m.Name("False")):
        yield node.with_changes(value=cst.Name("None"))


def assigned(node: cst.Assign | cst.AnnAssign) -> Iterator[cst.CSTNode]:
    """`a = b` becomes `a = None`. For False that changes nothing: `a = True` is made elsewhere."""
    if not m.matches(node, m.OneOf(m.Assign(value=m.Name("False")), m.AnnAssign(value=m.Name("False")))):
        yield from mutators.operator_assignment(node)


def unmatched(node: cst.Match) -> Iterator[cst.CSTNode]:
    """A `match` without one of its cases. Without a last `case _: pass` it does the same."""
    nothing = m.IndentedBlock(body=[m.SimpleStatementLine(body=[m.Pass()])])
    idle = m.matches(node.cases[-1], m.MatchCase(pattern=m.MatchAs(pattern=None, name=None), body=nothing))
    yield from [*mutators.operator_match(node)][: -1 if idle else None]


# Most strings are words for people; what is assigned outside of functions is needed to import the file.
APART = (mutators.operator_string, mutators.operator_assignment, mutators.operator_match)
EVERYWHERE = [pair for pair in mutators.mutation_operators if pair[1] not in APART]
IN_FUNCTIONS = [
    ((cst.Assign, cst.AnnAssign), assigned),
    (cst.Match, unmatched),
    ((cst.If, cst.While), negated),
]
IN_FUNCTIONS += [((cst.Expr, cst.Raise), dropped), (cst.Return, returned)]
# For type checkers or definitions alone, or never reached.
SILENT = (cst.Annotation, cst.Decorator, cst.Import, cst.ImportFrom)
NAMED = m.Name("TYPE_CHECKING") | m.Name("cast") | m.Name("TypeVar") | m.Name("assert_never")
NEVER = m.Name("AssertionError") | m.Name("NotImplementedError")
QUIET = m.If(test=NAMED) | m.Raise(exc=NEVER) | m.Raise(exc=m.Call(func=NEVER))


def faults(node: cst.CSTNode, places: Mapping, line: int = 0, function: Any = None) -> Iterator[tuple]:
    """Below a node: the operator, what it changes into what, the line, and the outermost function around it."""
    if isinstance(node, SILENT) or (isinstance(node, (cst.If, cst.Raise)) and m.matches(node, QUIET)):
        return
    telling = isinstance(node, cst.Call) and m.matches(node.func, NAMED)
    line = places[node].start.line if node in places else line
    for kind, operator in (*EVERYWHERE, *(IN_FUNCTIONS if function else ())):
        for changed in operator(node) if isinstance(node, kind) and not telling else ():
            yield operator, node, changed, line, function
    inner = function or (node if isinstance(node, cst.FunctionDef) else None)
    for child in node.children:
        yield from faults(child, places, line, inner)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A file with one fault in it. The key tells of what is written there, wherever in the file it stands."""

    path: str
    line: int
    before: str
    after: str
    diff: str
    key: str


def meaning_of(text: str) -> str:
    """What texts that do the same share. `strict` of zip says what must be so anyway. Raises SyntaxError."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "zip":
            node.keywords = []
    return ast.dump(tree)


def mutants(path: str, text: str, rng: random.Random) -> Iterator[Mutant]:
    """Every fault that can be put into a file: first one of each operator, since calls have most of them."""
    wrapper, meaning = MetadataWrapper(cst.parse_module(text)), meaning_of(text)
    found = [*faults(wrapper.module, wrapper.resolve(PositionProvider))]
    rng.shuffle(found)
    ranks = defaultdict(count)
    for _, node, changed, line, function in sorted(found, key=lambda each: next(ranks[each[0]])):
        with suppress(SyntaxError):
            after = wrapper.module.deep_replace(node, changed).code
            if meaning_of(after) != meaning:
                lines = [*difflib.unified_diff(text.splitlines(), after.splitlines(), n=0, lineterm="")][2:]
                diff = "\n".join(each for each in lines if not each.startswith("@@"))
                around = wrapper.module.code_for_node(function) if function else ""
                key = hashlib.sha256("\0".join([path, around, diff]).encode()).hexdigest()[:12]
                yield Mutant(path, line, text, after, diff, key)


def sample(root: Path, seed: int, size: int, only: str = "") -> list[Mutant]:
    """Files are drawn by their size, and from each one a fault that was not drawn before."""
    rng, waiting, chosen = random.Random(seed), {}, []
    texts = {path: (root / path).read_text() for path in sources(root) if path.startswith(only)}
    sizes = {path: text.count("\n") for path, text in texts.items() if text}
    while len(chosen) < size and sizes:
        (path,) = rng.choices([*sizes], [*sizes.values()])
        if path not in waiting:
            waiting[path] = mutants(path, texts[path], random.Random(f"{seed} {path}"))
        if mutant := next(waiting[path], None):
            chosen.append(mutant)
        else:
            del sizes[path]
    return sorted(chosen, key=lambda each: (each.path, each.line))
