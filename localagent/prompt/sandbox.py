"""The sandbox of chat templates, which are foreign code: they come with the weights.

A template sees the values it is given and nothing else. jinja2's own sandbox keeps it away from Python's
internals, but does not limit time and memory. Here each operation is done in three steps: what it goes
through is measured, and it is refused when that, or its result, would be too large; it is done; what it made
is paid for. `metering` has the prices.

The alternative would be jinja2's sandbox alone, in a process that can be ended. Such a process renders 50
messages in 0.4 ms, where it takes 0.8 ms here, but when all cores are busy decoding it has to wait for one:
with two busy processes a core, one rendering in twenty took 10 ms, and 1.2 ms here. It would also need 25 MB
for each model, and it would bound time alone: macOS limits no process's memory, and where there is no `fork`
there would be no such process at all.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from datetime import datetime
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
from localagent.prompt.metering import (
    CALL,
    COPIED,
    MAX_VALUE,
    NEW,
    SHALLOW,
    STEP,
    Budget,
    Paid,
    check,
    check_comparison,
    check_operator,
    current,
    is_iterator,
    listed,
    names,
    weigh,
    width,
)

__all__ = ["compile_template", "render_template"]

MAX_SOURCE = 100_000  # characters, which take up to five seconds to compile; real templates have up to 40,000

_LEFT_OUT = names("batch center filesizeformat pprint random slice striptags urlize wordwrap xmlattr")
_COMPARING = names("== != > >= < <= eq equalto ne gt greaterthan ge lt lessthan le in gteq lteq notin")
_SAME_AS = {"count": "length", "format": "%", "odd": "%", "even": "%", "divisibleby": "%"}
_METHODS: dict[type, frozenset[str]] = {
    str: names(
        """capitalize casefold center count endswith find format index isalnum isalpha isascii isdecimal
        isdigit islower isnumeric isspace istitle isupper join ljust lower lstrip partition removeprefix
        removesuffix replace rfind rindex rjust rpartition rsplit rstrip split splitlines startswith strip
        swapcase title upper zfill"""
    ),
    list: names("append clear copy count extend index insert pop remove reverse sort"),
    dict: names("clear copy get items keys pop popitem setdefault update values"),
    tuple: names("count index"),
}


def compile_template(source: str) -> Template:
    """Compile a chat template. Raises TemplateFailed."""
    if len(source) > MAX_SOURCE:
        raise TemplateFailed(f"the chat template is longer than {MAX_SOURCE:,} characters")
    token = current.set(Budget())  # jinja2 calls some filters while it compiles
    try:
        return _Environment().from_string(source)
    except Exception as error:  # foreign code: jinja2 and the compiler below it raise many kinds
        raise TemplateFailed(f"the chat template cannot be compiled: {_one_line(error)}") from error
    finally:
        current.reset(token)


def render_template(template: Template, values: Mapping[str, Any]) -> str:
    """Render with `values`, which the template may change. Raises TemplateFailed."""
    token = current.set(Budget())
    pieces: list[str] = []
    length = 0
    try:
        budget = Budget(weigh(values) - NEW)  # no values, no content
        current.set(budget)
        for piece in template.generate(**values):
            length += len(piece)
            if length > budget.size:
                raise SecurityError(f"the template writes more than {budget.size:,} characters")
            pieces.append(piece)
    except Exception as error:  # foreign code: it may divide by zero, recurse, index past the end, …
        raise TemplateFailed(f"the chat template refused the messages: {_one_line(error)}") from error
    finally:
        current.reset(token)
    return "".join(pieces)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())[:300] or type(error).__name__
    line = getattr(error, "lineno", None)
    known = isinstance(error, TemplateError)
    return (text if known else f"{type(error).__name__}: {text}") + (f" (line {line})" if line else "")


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
        self.filters |= {"_each": Paid, "_measured": _measured, "_made": _made, "_compared": _compared}
        # With the names that jinja2's syntax tree has for operators.
        self.tests |= {"gteq": self.tests["ge"], "lteq": self.tests["le"], "notin": lambda a, b: a not in b}
        for name in _COMPARING | names("lower upper filter test odd even divisibleby"):
            self.tests[name] = _paying(name, self.tests[name])
        del self.globals["lipsum"]
        self.globals |= {"raise_exception": _raise, "strftime_now": _now}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template: nodes.Template = _Charging().visit(super()._parse(source, name, filename))
        template.set_environment(self)
        template.set_lineno(1)
        return template

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        check_operator(operator, left, right)
        return _made(super().call_binop(context, operator, left, right), COPIED)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        args = _check_call(__obj, args, kwargs)
        return _made(super().call(__context, __obj, *args, **kwargs))

    def getitem(self, obj: Any, argument: Any) -> Any:
        # A tuple is hashed. Filters come here for `attribute=`, which may be a path of 'a.' * 450000.
        current.get().spend(NEW + weigh(argument, MAX_VALUE))
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
                return _filter("_made", node, nodes.Const(COPIED))
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
    current.get().measure(value)
    return value


def _made(value: Any, per_item: int = NEW) -> Any:
    return current.get().made(value, per_item)


@pass_environment
def _compared(environment: Any, left: Any, *parts: Any) -> Any:
    """`left op right op right …`, each as the test of that name."""
    result: Any = True
    for name, right in zip(parts[::2], parts[1::2], strict=True):
        test = environment.tests[name]
        if type(left) is str and type(right) is str and name not in ("in", "notin"):
            # What templates do most, role by role, and what takes no longer than making the two texts did.
            current.get().spend(STEP)
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
    shallow, comparing = name in SHALLOW, name in _COMPARING

    @functools.wraps(function)
    def paying(*args: Any, **kwargs: Any) -> Any:
        passed, values = args[:first], args[first:]
        values = tuple(Paid(v) if is_iterator(v) else v for v in values) if shallow else listed(values)
        if comparing:
            check_comparison(name, *values)
            return function(*values)
        check(name, *values, *kwargs.values())
        return _made(function(*passed, *values, **kwargs))

    return paying


def _check_call(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Refuse functions that templates have no use for, pay for the others, return the arguments."""
    budget = current.get()
    budget.spend(CALL)
    if isinstance(function, LoopContext):  # {% for … recursive %}
        return (*map(Paid, args[:1]), *args[1:])
    plain = getattr(function, "__wrapped__", function)  # jinja2 wraps `str.format`
    owner, name = getattr(plain, "__self__", None), getattr(plain, "__name__", "")
    if isinstance(function, type) or type(owner).__module__.startswith("jinja2."):
        args = listed(args)  # dict([(key, 1)]) hashes, loop.changed(x) compares
        budget.measure(*args)
        args = _hashed(args) if function in (dict, Namespace) else args
    elif owner is not None or hasattr(function, "__objclass__"):  # also of a class: dict.get({}, 1)
        if not any(isinstance(owner, kind) and name in allowed for kind, allowed in _METHODS.items()):
            raise SecurityError(f"the template calls {plain.__qualname__}, which is not allowed")
        args = listed(args)
        check(name, owner, *args, *kwargs.values())
        args = _hashed(args) if name == "update" else args
    return args


def _hashed(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same, looking at the clock for each pair: thousands of keys may have one hash."""
    return tuple(Paid(value) if isinstance(value, list | tuple) else value for value in args)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Hugging Face's `tojson`: unlike jinja2's it escapes no HTML and keeps the order of keys."""
    per_item = sum(map(len, separators or ()))
    current.get().measure(value, per_item=per_item, per_level=width(indent))
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return str(_made(text))


@pass_environment
def _join(environment: _Environment, value: Any, d: str = "", attribute: str | int | None = None) -> str:
    if attribute is not None:
        value = map(make_attrgetter(environment, attribute), value)
    budget = current.get()
    budget.measure(d)
    items, separator = list(Paid(value)), str(d)
    budget.measure(items, per_item=len(separator))
    return str(_made(separator.join(map(str, items))))


def _raise(message: Any) -> NoReturn:
    current.get().measure(message)
    raise TemplateError(str(message))


def _now(pattern: str) -> str:
    width(pattern)
    return datetime.now().strftime(pattern)
