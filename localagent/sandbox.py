"""The jinja2 environment for chat templates, which are foreign code: they come with the weights.

Knows jinja2 only. Contract: a template sees the values it is given and nothing else, and cannot reach
Python's internals. Whatever goes wrong is a one-line TemplateFailed.

One budget per rendering pays for everything that takes time or memory: passes of loops, calls, filters,
tests, comparisons, operators, literals, slices and what is written, each by the size of what it scans or
makes. One value may not exceed `budget.size`, methods are allow-listed, what can multiply text is predicted
before it runs, and every payment looks at the clock. All limits grow with the content that is passed in.

What this is not: a limit by the operating system. Sizes are estimates, so a hostile template can still take
some hundred megabytes (a few times what it is charged for) and `MAX_SECONDS` plus one bounded operation.

SandboxedEnvironment rather than ImmutableSandboxedEnvironment: Kimi K2's template calls `list.append`. Both
refuse underscore attributes and unsafe callables; the immutable one only adds that arguments cannot be
changed, and templates are given copies (`prompt.Shield.guard`), so nothing of the caller's can change.
"""

from __future__ import annotations

import functools
import json
import operator
import re
import time
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from contextvars import ContextVar
from datetime import datetime
from itertools import chain
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes, pass_context, pass_environment
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import SandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from localagent.errors import TemplateFailed

MAX_SOURCE = 1_000_000
MAX_VALUE = 1_000_000  # characters of one value, or of all that is written; plus 4 per unit of content
MAX_WORK = 20_000_000  # plus 64 per unit of content
MAX_SECONDS = 5.0  # plus one per million units of content
_MAX_WIDTH = 1_000
_MAX_BITS = 4_096
_MAX_DEPTH = 300
_PASS, _CALL, _FILTER, _TEST, _OBJECT = 8, 100, 8, 4, 500
_NESTED_WIDTH = re.compile(r":[^{}]*\{")
_ITEM, _REFERENCE = 16, 4  # of a container: a new object in it, or one that existed before
_LEAVE_OUT = (
    *("batch", "center", "filesizeformat", "pprint", "random", "slice", "striptags", "urlize"),
    *("wordwrap", "xmlattr"),
)


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_METHODS: dict[type, frozenset[str]] = {
    str: _names(
        """capitalize casefold center count endswith find format index isalnum isalpha isascii isdecimal
        isdigit islower isnumeric isspace istitle isupper join ljust lower lstrip partition removeprefix
        removesuffix replace rfind rindex rjust rpartition rsplit rstrip split splitlines startswith strip
        swapcase title upper zfill"""
    ),
    list: _names("append clear copy count extend index insert pop remove reverse sort"),
    dict: _names("clear copy get items keys pop popitem setdefault update values"),
    tuple: _names("count index"),
}
# Filters that look at the items of a container at most, and the tests that compare.
_SHALLOW = _names(
    "attr count d default first items last length list map reject rejectattr reverse select selectattr"
)
_COMPARING = _names("== != > >= < <= eq equalto ne gt greaterthan ge lt lessthan le in")
_WRITING = frozenset({"lower", "upper", "filter", "test"})  # tests that write or hash their value
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


class _Budget:
    """What one rendering may still spend. `content` is the weight of what the caller passes in."""

    __slots__ = ("_deadline", "_left", "size")

    def __init__(self, content: int = 0) -> None:
        self.size = MAX_VALUE + 4 * content
        self._left = MAX_WORK + 64 * content
        self._deadline = time.monotonic() + MAX_SECONDS + content / 1_000_000

    def spend(self, work: int) -> None:
        """Pay, and look at the clock."""
        self._left -= work
        if self._left < 0:
            raise SecurityError("the template takes too many steps or builds too much")
        if time.monotonic() > self._deadline:
            raise SecurityError("the template takes too long")

    def check(self, size: int) -> None:
        """Refuse a value of that size."""
        if size > self.size:
            raise SecurityError(f"the template builds a value of more than {self.size:,} characters or items")

    def weigh(self, value: Any, per_item: int = 0, per_level: int = 0) -> int:
        """Pay for going through all of a value; return its weight."""
        weight = _weigh(value, self.size, per_item, per_level)
        self.spend(weight)
        return weight

    def made(self, value: Any, item: int = _ITEM) -> Any:
        """Pay for a value that was just made, not for what is inside its items."""
        if isinstance(value, str | bytes):
            size = len(value)
        elif isinstance(value, list | tuple | dict | KeysView | ValuesView | ItemsView):
            size = len(value) * item
        else:
            _check_bits(value.bit_length() if isinstance(value, int) else 0)
            return value
        self.check(size)
        self.spend(size)
        return value


_budget: ContextVar[_Budget] = ContextVar("template_budget")


def _weigh(value: Any, limit: float, per_item: int = 0, per_level: int = 0) -> int:
    """About how many characters `value` takes to write; what is in it twice counts twice.

    `per_item` and `per_level` are what separators and indentation add. Raises SecurityError above `limit`.
    """
    if isinstance(value, str):
        return len(value)
    total = 0
    stack: list[Iterator[Any]] = [iter((value,))]
    while stack:
        for item in stack[-1]:
            total += _ITEM + per_item + per_level * len(stack)
            inside: Iterable[Any] | None = None
            if isinstance(item, str):
                total += len(item)
            elif isinstance(item, Namespace):
                inside = item._Namespace__attrs.values()
            elif isinstance(item, Mapping):
                inside = chain(item.keys(), item.values())
            elif isinstance(item, list | tuple | KeysView | ValuesView | ItemsView):
                inside = item
            if total > limit or len(stack) > _MAX_DEPTH:
                raise SecurityError("the template goes through a value that is too large or too deep")
            if inside is not None:
                stack.append(iter(inside))
                break
        else:
            stack.pop()
    return total


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks text for training; here it is just its body."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the body in place of the tag."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Charged(NodeTransformer):
    """Puts a paying filter wherever jinja2 compiles to plain Python operations."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.iter = _filter("_each", node.iter)
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.nodes = [_filter("_written", child) for child in node.nodes]
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        parts = [part for operand in node.ops for part in (nodes.Const(operand.op), operand.expr)]
        return _filter("_compare", node.expr, *parts)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filter("_concat", nodes.List(node.nodes))

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filter("_sliced", node) if isinstance(node.arg, nodes.Slice) else node

    def visit_List(self, node: nodes.List | nodes.Tuple | nodes.Dict) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return node if getattr(node, "ctx", "load") == "store" else _filter("_literal", node)

    visit_Tuple = visit_List  # noqa: N815
    visit_Dict = visit_List  # noqa: N815

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.key = _filter("_weighed", node.key)
        return node


class _Environment(SandboxedEnvironment):
    """jinja2 as Hugging Face configures it for chat templates, with everything charged."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
            optimized=False,  # or constants would be folded without being charged
        )
        for name in _LEAVE_OUT:
            del self.filters[name]
        del self.globals["lipsum"]
        self.filters |= {"tojson": _to_json, "join": _join}
        self.filters = {name: _charge_filter(name, made) for name, made in self.filters.items()}
        self.filters |= {"_each": _each, "_written": _written, "_compare": _compare, "_concat": _concat}
        self.filters |= {"_sliced": _sliced, "_literal": _literal, "_weighed": _weighed}
        for name in _COMPARING | _WRITING:
            self.tests[name] = _charge_test(name, self.tests[name])
        self.globals |= {"raise_exception": _raise, "strftime_now": _now}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template: nodes.Template = _Charged().visit(super()._parse(source, name, filename))
        template.set_environment(self)
        template.set_lineno(1)
        return template

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Refuse an operation whose result would be out of bounds, else do it and charge it."""
        _check_operation(operator, left, right)
        return _budget.get().made(super().call_binop(context, operator, left, right), _REFERENCE)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Charge the call, check what it would build, and do it."""
        budget = _budget.get()
        budget.spend(_CALL)
        args = _check_call(__obj, args, kwargs)
        return budget.made(super().call(__context, __obj, *args, **kwargs))

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Charge a key that is hashed, and written into the message when it is missing."""
        if isinstance(argument, list | tuple | dict):
            _budget.get().weigh(argument)
        return super().getitem(obj, argument)


def compile_template(source: str) -> Template:
    """Compile a chat template. Raises TemplateFailed."""
    if len(source) > MAX_SOURCE:
        raise TemplateFailed(f"the chat template is longer than {MAX_SOURCE:,} characters")
    token = _budget.set(_Budget())  # constant folding runs filters
    try:
        return _Environment().from_string(source)
    except Exception as error:  # foreign code: jinja2 and the compiler below it raise many kinds
        raise TemplateFailed(f"the chat template cannot be compiled: {_one_line(error)}") from error
    finally:
        _budget.reset(token)


def render_template(template: Template, values: Mapping[str, Any]) -> str:
    """Render with `values`, which the template may change. Raises TemplateFailed."""
    budget = _Budget(_weigh(values, float("inf")))
    token = _budget.set(budget)
    pieces: list[str] = []
    length = 0
    try:
        for piece in template.generate(**values):
            length += len(piece)
            if length > budget.size:
                raise SecurityError(f"the template writes more than {budget.size:,} characters")
            pieces.append(piece)
    except Exception as error:  # foreign code: it may divide by zero, recurse, index past the end, …
        raise TemplateFailed(f"the chat template refused the messages: {_one_line(error)}") from error
    finally:
        _budget.reset(token)
    return "".join(pieces)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())[:300] or type(error).__name__
    known = isinstance(error, TemplateError)
    line = getattr(error, "lineno", None)
    return (text if known else f"{type(error).__name__}: {text}") + (f" (line {line})" if line else "")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Hugging Face's `tojson`: unlike jinja2's it escapes no HTML and keeps the order of keys."""
    _check_width(indent)
    per_level = len(indent) if isinstance(indent, str) else indent or 0
    _budget.get().weigh(value, sum(map(len, separators or ())), max(0, per_level))
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


@pass_environment
def _join(environment: _Environment, value: Any, d: str = "", attribute: str | int | None = None) -> str:
    if attribute is not None:
        value = map(make_attrgetter(environment, attribute), value)
    items = list(value)
    separator = str(d)
    _budget.get().weigh(items, per_item=len(separator))
    return separator.join(map(str, items))


def _raise(message: Any) -> NoReturn:
    _budget.get().weigh(message)
    raise TemplateError(str(message))


def _now(pattern: str) -> str:
    _check_width(pattern)
    return datetime.now().strftime(pattern)


def _filter(name: str, node: nodes.Node | None, *args: Any) -> nodes.Filter:
    return nodes.Filter(node, name, list(args), [], None, None)


class _each:  # noqa: N801  (a filter)
    """An iterable whose passes are charged."""

    def __init__(self, iterable: Iterable[Any]) -> None:
        self._iterable = iterable

    def __iter__(self) -> Iterator[Any]:
        spend = _budget.get().spend
        for item in self._iterable:
            spend(_PASS)
            yield item

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]  # TypeError is what jinja2 expects


@pass_context  # or jinja2 would write constants while compiling
def _written(_: Context, value: Any) -> Any:
    _budget.get().weigh(value)
    return value


def _weighed(value: Any) -> Any:
    _budget.get().weigh(value)
    return value


def _literal(value: Any) -> Any:
    return _budget.get().made(value)


def _sliced(value: Any) -> Any:
    return _budget.get().made(value, _REFERENCE)


def _concat(values: list[Any]) -> str:
    _budget.get().weigh(values)
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


def _charge_comparison(name: str, left: Any, right: Any) -> None:
    budget = _budget.get()
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


def _charge_filter(name: str, function: Any) -> Any:
    """A filter that pays for what it is given and for what it makes."""
    first = 1 if getattr(function, "jinja_pass_arg", None) else 0

    @functools.wraps(function)
    def charged(*args: Any, **kwargs: Any) -> Any:
        budget = _budget.get()
        budget.spend(_FILTER)
        values = (*args[first:], *kwargs.values())
        if name not in {"d", "default", "join", "tojson"}:
            for value in values[name in _SHALLOW :]:
                budget.weigh(value)
            _check_text_call(name, values)
        return budget.made(function(*args, **kwargs))

    return charged


def _charge_test(name: str, function: Any) -> Any:
    """A test that pays for the comparison it makes."""

    @functools.wraps(function)
    def charged(*args: Any) -> Any:
        if name in _COMPARING:
            _charge_comparison("in" if name == "in" else "eq" if name in {"==", "eq"} else "lt", *args[:2])
        else:
            _budget.get().weigh(args[-1])
        return function(*args)

    return charged


def _check_call(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Refuse what templates have no use for, charge what the call goes through, return the arguments."""
    budget = _budget.get()
    if isinstance(function, LoopContext):
        return (_each(args[0]), *args[1:]) if args else args
    plain = getattr(function, "__wrapped__", function)
    owner, name = getattr(plain, "__self__", None), getattr(plain, "__name__", "")
    if isinstance(function, type):  # namespace, dict, cycler, joiner
        budget.spend(_OBJECT)
        budget.weigh(args)
    elif owner is None:
        if hasattr(function, "__objclass__"):
            raise SecurityError("the template calls a method of a class")
    elif type(owner).__module__.startswith("jinja2."):
        budget.weigh(args)
    else:
        names = next((names for kind, names in _METHODS.items() if isinstance(owner, kind)), frozenset())
        if name not in names:
            raise SecurityError(f"the template calls {type(owner).__name__}.{name}, which is not allowed")
        return _check_method(owner, name, args, kwargs)
    return args


def _check_method(owner: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    budget = _budget.get()
    if isinstance(owner, str):
        budget.spend(len(owner) // 16)
        if name == "join" and args:
            args = (list(args[0]),)
            budget.weigh(args[0], per_item=len(owner))
        _check_text_call(name, (owner, *args, *kwargs.values()))
    elif isinstance(owner, dict):
        budget.weigh(args[:1])
    elif name in {"index", "count", "remove", "sort"}:
        budget.weigh((owner, args))
    elif name == "extend" and args and hasattr(args[0], "__len__"):
        budget.check(_REFERENCE * (len(owner) + len(args[0])))
        budget.spend(_REFERENCE * len(args[0]))
    return args


def _check_text_call(name: str, values: tuple[Any, ...]) -> None:
    """Refuse a text method or filter called `name` on `values` (the text first) that would build too much."""
    budget = _budget.get()
    if name in {"ljust", "rjust", "center", "zfill", "indent"}:
        for width in values[1:]:
            _check_width(width)
        if name == "indent":
            text = str(values[0])
            budget.check(len(text) + len(text.splitlines()) * _MAX_WIDTH if len(text) > _MAX_WIDTH else 0)
    elif name == "replace" and len(values) >= 3:
        text, old, new = map(str, values[:3])
        growth = max(text.count(old) * len(new), text.count(new) * len(old))  # keywords come in any order
        budget.check(len(text) + growth)
    elif name == "format":
        _check_format(str(values[0]), values[1:])
    elif name == "sum" and not all(isinstance(value, int | float | str | None) for value in values[1:]):
        raise SecurityError("the template sums something else than numbers")


def _check_width(width: Any) -> None:
    size = len(width) if isinstance(width, str) else width
    if isinstance(size, int) and abs(size) > _MAX_WIDTH:
        raise SecurityError(f"the template pads or indents by more than {_MAX_WIDTH:,} characters")


def _check_format(pattern: str, arguments: tuple[Any, ...]) -> None:
    budget = _budget.get()
    budget.spend(len(pattern))
    digits = 0
    for character in pattern:
        digits = digits + 1 if character.isdigit() else 0
        if digits > 3 or character == "*":
            raise SecurityError("the template formats with a width above 999, or one that it computes")
    if _NESTED_WIDTH.search(pattern):
        raise SecurityError("the template formats with a width that it computes")
    fields = pattern.count("%") + pattern.count("{")
    budget.check(len(pattern) + fields * (budget.weigh(arguments) + _MAX_WIDTH))


def _check_bits(bits: int) -> None:
    if bits > _MAX_BITS:
        raise SecurityError("the template computes a number that is too large")


def _check_operation(operator: str, left: Any, right: Any) -> None:
    check = _budget.get().check
    if operator == "%" and isinstance(left, str):
        _check_format(left, (right,))
    sized = [value for value in (left, right) if isinstance(value, str | list | tuple)]
    whole = [value for value in (left, right) if isinstance(value, int)]
    if operator in {"+", "*"} and sized:
        cost = 1 if isinstance(sized[0], str) else _REFERENCE
        check(cost * (sum(map(len, sized)) if operator == "+" else len(sized[0]) * max(whole, default=0)))
    elif len(whole) == 2:
        _check_bits(left.bit_length() * right if operator == "**" else 0)
        _check_bits(left.bit_length() + right.bit_length())
