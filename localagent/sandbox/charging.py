"""Payment for what jinja2 does without asking: loops, output, comparisons, literals, filters and tests.

Knows jinja2's syntax tree, filters and tests. Contract: with `Charged` applied to the tree, `CHARGES` among
the filters, and the other filters and tests wrapped, the environment has only calls, operators and keys left
to charge.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, ItemsView, KeysView, ValuesView
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.runtime import Context
from jinja2.visitor import NodeTransformer

from localagent.sandbox.budget import REFERENCE, current_budget, each
from localagent.sandbox.checks import check_text_call, names

_FILTER, _TEST = 8, 4
# Filters that look at the items of a container at most, and the tests that compare.
_SHALLOW = names(
    "attr count d default first items last length list map reject rejectattr reverse select selectattr"
)
COMPARING = names("== != > >= < <= eq equalto ne gt greaterthan ge lt lessthan le in")
WRITING = frozenset({"lower", "upper", "filter", "test"})  # tests that write or hash their value
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "gteq": operator.ge,
    "lt": operator.lt,
    "lteq": operator.le,
    "in": lambda left, right: left in right,
    "notin": lambda left, right: left not in right,
}


class Charged(NodeTransformer):
    """Puts a paying filter wherever jinja2 compiles to plain Python operations."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        """Each pass."""
        self.generic_visit(node)
        node.iter = _filter("_each", node.iter)
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Node:  # noqa: N802
        """What is written."""
        self.generic_visit(node)
        node.nodes = [_filter("_written", child) for child in node.nodes]
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        """All operands and operators of a chain."""
        self.generic_visit(node)
        parts = [part for operand in node.ops for part in (nodes.Const(operand.op), operand.expr)]
        return _filter("_compare", node.expr, *parts)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        """The text that `~` makes."""
        self.generic_visit(node)
        return _filter("_concat", nodes.List(node.nodes))

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        """Slices."""
        self.generic_visit(node)
        return _filter("_sliced", node) if isinstance(node.arg, nodes.Slice) else node

    def visit_List(self, node: nodes.List | nodes.Tuple | nodes.Dict) -> nodes.Node:  # noqa: N802
        """Literals, but not the targets of an assignment."""
        self.generic_visit(node)
        return node if getattr(node, "ctx", "load") == "store" else _filter("_literal", node)

    visit_Tuple = visit_List  # noqa: N815
    visit_Dict = visit_List  # noqa: N815

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:  # noqa: N802
        """Keys, which are hashed."""
        self.generic_visit(node)
        node.key = _filter("_weighed", node.key)
        return node


def _filter(name: str, node: nodes.Node | None, *args: Any) -> nodes.Filter:
    return nodes.Filter(node, name, list(args), [], None, None)


@pass_context  # or jinja2 would write constants while compiling
def _written(_: Context, value: Any) -> Any:
    current_budget.get().weigh(value)
    return value


def _weighed(value: Any) -> Any:
    current_budget.get().weigh(value)
    return value


def _literal(value: Any) -> Any:
    return current_budget.get().made(value)


def _sliced(value: Any) -> Any:
    return current_budget.get().made(value, REFERENCE)


def _concat(values: list[Any]) -> str:
    current_budget.get().weigh(values)
    return "".join(map(str, values))


def _compare(left: Any, *parts: Any) -> Any:
    """`left op right op right …`."""
    result: Any = True
    for name, right in zip(parts[::2], parts[1::2], strict=True):
        _charge_comparison(name, left, right)
        result = _COMPARE[name](left, right)
        if not result:
            break
        left = right
    return result


CHARGES: dict[str, Callable[..., Any]] = {  # the filters that `Charged` puts in
    "_each": each,
    "_written": _written,
    "_compare": _compare,
    "_concat": _concat,
    "_sliced": _sliced,
    "_literal": _literal,
    "_weighed": _weighed,
}


def _charge_comparison(name: str, left: Any, right: Any) -> None:
    budget = current_budget.get()
    budget.spend(_TEST)
    containers = (list, tuple, dict, KeysView, ValuesView, ItemsView)
    if name in {"in", "notin"}:
        if isinstance(left, containers):
            budget.weigh(left)
        if isinstance(right, str):
            budget.spend(len(right) // 16)
        elif isinstance(right, containers) and not isinstance(right, dict | KeysView):
            budget.spend(len(right) * (1 + len(left) // 16) if isinstance(left, str) else len(right))
            if isinstance(left, containers):
                budget.weigh(right)
    elif (
        isinstance(left, containers)
        and isinstance(right, containers)
        and (name not in {"eq", "ne"} or len(left) == len(right))
    ):
        budget.weigh(left)


def charge_filter(name: str, function: Any) -> Any:
    """A filter that pays for what it is given and for what it makes."""
    first = 1 if getattr(function, "jinja_pass_arg", None) else 0

    @functools.wraps(function)
    def charged(*args: Any, **kwargs: Any) -> Any:
        budget = current_budget.get()
        budget.spend(_FILTER)
        values = (*args[first:], *kwargs.values())
        if name not in {"d", "default", "join", "tojson"}:
            for value in values[name in _SHALLOW :]:
                budget.weigh(value)
            check_text_call(name, values)
        return budget.made(function(*args, **kwargs))

    return charged


def charge_test(name: str, function: Any) -> Any:
    """A test that pays for the comparison it makes."""

    @functools.wraps(function)
    def charged(*args: Any) -> Any:
        if name in COMPARING:
            _charge_comparison("in" if name == "in" else "eq" if name in {"==", "eq"} else "lt", *args[:2])
        else:
            current_budget.get().weigh(args[-1])
        return function(*args)

    return charged
