"""The sandbox of chat templates, which are foreign code: they come with the weights.

A template sees the values it is given and nothing else. jinja2's own sandbox keeps it away from Python's
internals, but does not limit time and memory. Here each operation is done in three steps: what it goes
through is measured, and it is refused when that, or its result, would be too large; it is done; what it made
is paid for. All payments come from one budget, and each looks at the clock. All limits grow with the content.

The sizes are estimates: a hostile template can still take some hundred megabytes, and `MAX_SECONDS` plus the
time of one operation within the limits.
"""

from __future__ import annotations

import functools
import json
import math
import re
import string
import time
from collections.abc import Iterable, Iterator, Mapping
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
from jinja2.utils import Cycler, Namespace
from jinja2.visitor import NodeTransformer

from localagent.errors import TemplateFailed

__all__ = ["compile_template", "render_template"]

MAX_SOURCE = 100_000  # characters, which take up to five seconds to compile; real templates have up to 40,000
MAX_VALUE = 1_000_000  # characters of one value, or of all that is written; plus 4 per unit of content
MAX_WORK = 20_000_000  # plus 64 per unit of content
MAX_SECONDS = 5.0  # plus one per million units of content
_MAX_BITS = 4_096
_MAX_DEPTH = 300
_MAX_WIDTH = 1_000
_STEP, _CALL = 8, 100
_NEW, _COPIED = 16, 4  # of an item in a container: a new object, or a reference to an old one
_Keys: Any = type({}.keys())
_CONTAINERS: Any = (list, tuple, dict, _Keys, type({}.values()), type({}.items()))  # ABCs would be slow


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_LEFT_OUT = _names("batch center filesizeformat pprint random slice striptags urlize wordwrap xmlattr")
# Filters and methods that only hand on what they are given, and methods whose first argument is a key.
_STORING, _KEYED = _names("append d default extend insert"), _names("get pop setdefault update")
# Filters and methods that look at what a value holds and not into it.
_SHALLOW = _names(
    """attr clear copy first items keys last length list map popitem reject rejectattr reverse select
    selectattr values"""
).union(_STORING, _KEYED)
_COMPARING = _names("== != > >= < <= eq equalto ne gt greaterthan ge lt lessthan le in gteq lteq notin")
_SAME_AS = {"count": "length", "format": "%", "odd": "%", "even": "%", "divisibleby": "%"}
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
# Width, precision and kind of a `%` field. A key with parentheses in it is not read: then the kind is `(`.
_PERCENT_FIELD = re.compile(r"%(?:\([^()]*\))?[-#0 +]*(\*|\d*)(?:\.(\*|\d*))?[hlL]?(.?)", re.DOTALL)


def compile_template(source: str) -> Template:
    """Compile a chat template. Raises TemplateFailed."""
    if len(source) > MAX_SOURCE:
        raise TemplateFailed(f"the chat template is longer than {MAX_SOURCE:,} characters")
    token = _budget.set(_Budget(0))  # jinja2 calls some filters while it compiles
    try:
        return _Environment().from_string(source)
    except Exception as error:  # foreign code: jinja2 and the compiler below it raise many kinds
        raise TemplateFailed(f"the chat template cannot be compiled: {_one_line(error)}") from error
    finally:
        _budget.reset(token)


def render_template(template: Template, values: Mapping[str, Any]) -> str:
    """Render with `values`, which the template may change. Raises TemplateFailed."""
    token = _budget.set(_Budget(0))
    pieces: list[str] = []
    length = 0
    try:
        budget = _Budget(_weigh(values) - _NEW)  # no values, no content
        _budget.set(budget)
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
    line = getattr(error, "lineno", None)
    known = isinstance(error, TemplateError)
    return (text if known else f"{type(error).__name__}: {text}") + (f" (line {line})" if line else "")


class _Budget:
    """What one rendering may still spend. `content` is the weight of what the caller passes in."""

    def __init__(self, content: int) -> None:
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

    def require(self, size: int) -> None:
        """Refuse a value of that size, if it is too large."""
        if size > self.size:
            raise SecurityError(f"the template builds a value of more than {self.size:,} characters or items")

    def measure(self, *values: Any, per_item: int = 0, per_level: int = 0) -> int:
        """Pay for going through all of some values; return what they weigh."""
        weight = 0
        for value in values:
            weight += _weigh(value, self.size, per_item, per_level)
        if values:
            self.spend(weight)
        return weight

    def made(self, value: Any, per_item: int = _NEW) -> Any:
        """Pay for a value that was just made, not for what is inside its items."""
        if isinstance(value, str):
            size = len(value)
        elif isinstance(value, _CONTAINERS):
            size = len(value) * per_item
        else:
            _require_bits(value.bit_length() if isinstance(value, int) else 0)
            return value
        self.require(size)
        self.spend(size)
        return value


_budget: ContextVar[_Budget] = ContextVar("template_budget")


def _weigh(value: Any, limit: float = math.inf, per_item: int = 0, per_level: int = 0) -> int:
    """About how many characters a value takes to write. What is in it twice counts twice, as in writing.

    `per_item` and `per_level` are what separators and indentation add. Raises SecurityError above `limit`.
    """
    if isinstance(value, str):
        return len(value)
    total = 0
    stack: list[Iterator[Any]] = [iter((value,))]  # no recursion: the template chooses the depth
    while stack:
        for item in stack[-1]:
            total += _NEW + per_item + per_level * len(stack)
            inside: Iterable[Any] | None = None
            if isinstance(item, str):
                total += len(item)
            elif isinstance(item, int):
                total += item.bit_length() // 4
            elif isinstance(item, dict):
                inside = chain(item.keys(), item.values())
            elif isinstance(item, _CONTAINERS):
                inside = item
            elif isinstance(item, Namespace):
                inside = item._Namespace__attrs.values()
            if total > limit or len(stack) > _MAX_DEPTH:
                raise SecurityError("the template goes through a value that is too large or too deep")
            if inside is not None:
                stack.append(iter(inside))
                break
        else:
            stack.pop()
    return total


class _Each:
    """An iterable whose items are paid for as they come."""

    def __init__(self, iterable: Iterable[Any]) -> None:
        self._iterable = iterable

    def __iter__(self) -> Iterator[Any]:
        spend = _budget.get().spend
        for item in self._iterable:
            spend(_STEP)
            yield item

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]  # TypeError is what jinja2 expects


def _is_iterator(value: Any) -> bool:
    return hasattr(value, "__next__") and not isinstance(value, LoopContext | Cycler)


def _paid(value: Any) -> Any:
    """The value, with its items paid for if it is an iterator: each may take long to come."""
    return _Each(value) if _is_iterator(value) else value


def _listed(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values, with lists in place of iterators, in which nothing can be measured."""
    for value in values:
        if _is_iterator(value):
            return tuple(list(_Each(value)) if _is_iterator(value) else value for value in values)
    return values


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks text for training; here it is just its body."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(SandboxedEnvironment):
    """jinja2 as Hugging Face sets it up for chat templates, with every operation paid for.

    Not ImmutableSandboxedEnvironment: Kimi K2's template calls `list.append`. Both refuse underscored names
    and unsafe functions; the immutable one only keeps the values that it is given from being changed.
    """

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
            optimized=False,  # or constants would be folded, and nobody would pay
        )
        for name in _LEFT_OUT:
            del self.filters[name]
        self.filters = {name: _paying(name, function) for name, function in self.filters.items()}
        self.filters |= {"join": _join, "tojson": _to_json}
        self.filters |= {"_each": _Each, "_measured": _measured, "_made": _made, "_compared": _compared}
        # With the names that jinja2's syntax tree has for operators.
        self.tests |= {"gteq": self.tests["ge"], "lteq": self.tests["le"], "notin": lambda a, b: a not in b}
        for name in _COMPARING | _names("lower upper filter test odd even divisibleby"):
            self.tests[name] = _paying(name, self.tests[name])
        del self.globals["lipsum"]
        self.globals |= {"raise_exception": _raise, "strftime_now": _now}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template: nodes.Template = _Charging().visit(super()._parse(source, name, filename))
        template.set_environment(self)
        template.set_lineno(1)
        return template

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _check_operator(operator, left, right)
        return _made(super().call_binop(context, operator, left, right), _COPIED)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        args = _check_call(__obj, args, kwargs)
        return _made(super().call(__context, __obj, *args, **kwargs))

    def getitem(self, obj: Any, argument: Any) -> Any:
        # A tuple is hashed. Filters come here for `attribute=`, which may be a path of 'a.' * 450000.
        _budget.get().spend(_NEW + _weigh(argument, MAX_VALUE))
        return super().getitem(obj, argument)


class _Charging(NodeTransformer):
    """Puts a filter that pays wherever jinja2 would compile to plain Python."""

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        super().generic_visit(node)
        match node:
            case nodes.For():
                node.iter = _filter("_each", node.iter)
            case nodes.Output():
                node.nodes = [_filter("_measured", child) for child in node.nodes]
            case nodes.Pair():  # of a literal: keys are hashed
                node.key = _filter("_measured", node.key)
            case nodes.List() | nodes.Dict() | nodes.Tuple(ctx="load"):
                return _filter("_made", node)
            case nodes.Getitem(arg=nodes.Slice()):
                return _filter("_made", node, nodes.Const(_COPIED))
            case nodes.Concat():
                return _filter("join", nodes.List(node.nodes))
            case nodes.Compare():
                parts = [part for each in node.ops for part in (nodes.Const(each.op), each.expr)]
                return _filter("_compared", node.expr, *parts)
        return node


def _filter(name: str, node: nodes.Node, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(args), [], None, None)


@pass_context  # or jinja2 would write constants while it compiles
def _measured(_: Context, value: Any) -> Any:
    _budget.get().measure(value)
    return value


def _made(value: Any, per_item: int = _NEW) -> Any:
    return _budget.get().made(value, per_item)


@pass_environment
def _compared(environment: Any, left: Any, *parts: Any) -> Any:
    """`left op right op right …`, each as the test of that name."""
    result: Any = True
    for name, right in zip(parts[::2], parts[1::2], strict=True):
        test = environment.tests[name]
        if type(left) is str and type(right) is str and name not in ("in", "notin"):
            # What templates do most, role by role, and what takes no longer than making the two texts did.
            _budget.get().spend(_STEP)
            test = test.__wrapped__
        result = test(left, right)
        if not result:
            break
        left = right
    return result


def _paying(name: str, function: Any) -> Any:
    """A filter or a test that pays for what it goes through and for what it makes."""
    first = 1 if getattr(function, "jinja_pass_arg", None) else 0
    name = _SAME_AS.get(name, name)
    shallow, comparing = name in _SHALLOW, name in _COMPARING

    @functools.wraps(function)
    def paying(*args: Any, **kwargs: Any) -> Any:
        passed, values = args[:first], args[first:]
        values = tuple(map(_paid, values)) if shallow else _listed(values)
        if comparing:
            _check_comparison(name, *values)
            return function(*values)
        _check(name, *values, *kwargs.values())
        return _made(function(*passed, *values, **kwargs))

    return paying


def _check_call(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Refuse functions that templates have no use for, pay for the others, return the arguments."""
    budget = _budget.get()
    budget.spend(_CALL)
    if isinstance(function, LoopContext):  # {% for … recursive %}
        return (*map(_Each, args[:1]), *args[1:])
    plain = getattr(function, "__wrapped__", function)  # jinja2 wraps `str.format`
    owner, name = getattr(plain, "__self__", None), getattr(plain, "__name__", "")
    if isinstance(function, type) or type(owner).__module__.startswith("jinja2."):
        args = _listed(args)  # dict([(key, 1)]) hashes, loop.changed(x) compares
        budget.measure(*args)
        args = _hashed(args) if function in (dict, Namespace) else args
    elif owner is not None or hasattr(function, "__objclass__"):  # also of a class: dict.get({}, 1)
        if not any(isinstance(owner, kind) and name in allowed for kind, allowed in _METHODS.items()):
            raise SecurityError(f"the template calls {plain.__qualname__}, which is not allowed")
        args = _listed(args)
        _check(name, owner, *args, *kwargs.values())
        args = _hashed(args) if name == "update" else args
    return args


def _hashed(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same, looking at the clock for each pair: thousands of keys may have one hash."""
    return tuple(_Each(value) if isinstance(value, list | tuple) else value for value in args)


def _check_operator(operator: str, left: Any, right: Any) -> None:
    """Refuse an operation whose result would be too large."""
    budget = _budget.get()
    budget.spend(_STEP)
    sized = [value for value in (left, right) if isinstance(value, str | list | tuple)]
    whole = [value for value in (left, right) if isinstance(value, int)]
    if operator == "%" and isinstance(left, str):
        _check(operator, left, right)
    elif operator in {"+", "*"} and sized:
        count = sum(map(len, sized)) if operator == "+" else len(sized[0]) * max(whole, default=0)
        budget.require(count * (1 if isinstance(sized[0], str) else _COPIED))
    elif len(whole) == 2:
        _require_bits(left.bit_length() * right if operator == "**" else 0)
        _require_bits(left.bit_length() + right.bit_length())


def _require_bits(bits: int) -> None:
    if bits > _MAX_BITS:
        raise SecurityError("the template computes a number that is too large")


def _check_comparison(name: str, left: Any, right: Any) -> None:
    """Pay for what a comparison goes through."""
    budget = _budget.get()
    budget.spend(_STEP)
    nested = isinstance(left, _CONTAINERS)
    if name not in {"in", "notin"}:
        if nested and isinstance(right, _CONTAINERS):
            budget.measure(min(left, right, key=len))  # none goes further than the shorter one
        return
    if nested:
        budget.measure(left)
    if isinstance(right, str):
        budget.spend(len(right) // 16)
    elif isinstance(right, _CONTAINERS) and not isinstance(right, (dict, _Keys)):
        if nested:
            budget.measure(right)
        # 'a' * 900000 in ['b' * 900000] * 60000
        budget.spend(len(right) * (1 + len(left) // 16 if isinstance(left, str) else 1))


def _check(name: str, first: Any, *others: Any) -> None:
    """Refuse a filter, a test or a method of `first` that would take too long or make too much.

    `others` are its other operands, those given by keyword in any order.
    """
    budget = _budget.get()
    budget.spend(_STEP)
    weight = budget.measure(*([] if name in _STORING else others[:1] if name in _KEYED else others))
    if isinstance(first, str):
        # strip('b' * 900000 ~ 'a') looks for each character of the text among all of those.
        longest = max([len(value) for value in others if isinstance(value, str)], default=0)
        budget.spend(len(first) // 16 * (1 + longest // 16))
    elif name not in _SHALLOW:
        budget.measure(first)
    match name:
        case "ljust" | "rjust" | "center" | "zfill" | "round" | "indent":
            widest = max([4, *map(_width, others)])  # 4 is what `indent` does without a width
            if name == "indent":
                budget.require(len(str(first)) + len(str(first).splitlines()) * widest)
        case "replace" if len(others) >= 2:
            text, old, new = map(str, (first, *others[:2]))
            budget.require(len(text) + max(text.count(old) * len(new), text.count(new) * len(old)))
        case "join":  # the method: the filter pays for itself
            budget.measure(*others, per_item=len(first))
        case "%":
            fields = _PERCENT_FIELD.findall(str(first))
            _check_format(str(first), [".".join(field) for field in fields], weight)
        case "format":
            _check_format(first, [spec or "" for _, _, spec, _ in string.Formatter().parse(first)], weight)
        case "extend":  # by itself doubles
            size = _COPIED * sum(len(value) for value in (first, *others) if hasattr(value, "__len__"))
            budget.require(size)
            budget.spend(size - _COPIED * len(first))
        case "sum" if not all(isinstance(value, int | float | str | None) for value in others):
            raise SecurityError("the template sums something else than numbers")  # sum(start=[])
        case "sort" if any(map(callable, others)):  # key='a'.center would be called without a check
            raise SecurityError("the template sorts by a function")


def _width(value: Any) -> int:
    """A width, or the length of a text used as one. Refuses one that is too large."""
    width = len(value) if isinstance(value, str) else abs(value) if isinstance(value, int) else 0
    if width > _MAX_WIDTH:
        raise SecurityError(f"the template pads or indents by more than {_MAX_WIDTH:,} characters")
    return width


def _check_format(pattern: str, fields: list[str], weight: int) -> None:
    """Refuse fields that are too wide, or values of that weight in so many of them."""
    if any(re.search(r"\d{4}|[*({]", field) for field in fields):
        raise SecurityError("the template formats with a width above 999, or one that it computes")
    _budget.get().require(len(pattern) + len(fields) * (weight + _MAX_WIDTH))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Hugging Face's `tojson`: unlike jinja2's it escapes no HTML and keeps the order of keys."""
    per_item = sum(map(len, separators or ()))
    _budget.get().measure(value, per_item=per_item, per_level=_width(indent))
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return str(_made(text))


@pass_environment
def _join(environment: _Environment, value: Any, d: str = "", attribute: str | int | None = None) -> str:
    if attribute is not None:
        value = map(make_attrgetter(environment, attribute), value)
    budget = _budget.get()
    budget.measure(d)
    items, separator = list(_Each(value)), str(d)
    budget.measure(items, per_item=len(separator))
    return str(_made(separator.join(map(str, items))))


def _raise(message: Any) -> NoReturn:
    _budget.get().measure(message)
    raise TemplateError(str(message))


def _now(pattern: str) -> str:
    _width(pattern)
    return datetime.now().strftime(pattern)
