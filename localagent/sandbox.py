"""The jinja2 environment for chat templates, which are foreign code: they come with the weights.

Knows jinja2 only. Contract: a template sees the values it is given and nothing else; it can neither reach
Python's internals nor run for long nor use much memory: loop passes and calls are counted, and every
operation that can multiply text is checked before it runs. Whatever goes wrong is a one-line TemplateFailed.

SandboxedEnvironment rather than ImmutableSandboxedEnvironment: Kimi K2's template calls `list.append`. Both
refuse underscore attributes and unsafe callables; the immutable one only adds that arguments cannot be
changed, and templates are given copies (`prompt.Shield.guard`), so nothing of the caller's can change.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import SandboxedEnvironment

from localagent.errors import TemplateFailed

MAX_SOURCE = 1_000_000
MAX_TEXT = 8_000_000
MAX_STEPS = 2_000_000
_MAX_WIDTH = 1_000
_MAX_BITS = 4_096
_CALL = 10  # steps: a macro call takes about as long as ten passes of a loop
_NESTED_WIDTH = re.compile(r":[^{}]*\{")
_PADDING = frozenset({"ljust", "rjust", "center", "zfill", "expandtabs"})
_LEAVE_OUT = (
    "batch",
    "center",
    "filesizeformat",
    "pprint",
    "random",
    "slice",
    "urlize",
    "wordwrap",
    "xmlattr",
)


class _Budget:
    """Counts the steps of one rendering."""

    __slots__ = ("steps",)

    def __init__(self) -> None:
        self.steps = 0

    def step(self, count: int = 1) -> None:
        self.steps += count
        if self.steps > MAX_STEPS:
            raise SecurityError(f"the template takes more than {MAX_STEPS:,} steps")


_budget: ContextVar[_Budget] = ContextVar("template_budget")


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks text for training; here it is just its body."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the body in place of the tag."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(SandboxedEnvironment):
    """jinja2 as Hugging Face configures it for chat templates, with its growth bounded."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
        )
        for name in _LEAVE_OUT:
            del self.filters[name]
        del self.globals["lipsum"]
        self.filters |= {"tojson": _to_json, "_each": _each, "_concat": _concat, "_bounded": _bounded}
        self.filters |= {
            name: _checked(name, self.filters[name]) for name in ("indent", "join", "replace", "format")
        }
        self.globals |= {"raise_exception": _raise, "strftime_now": _now}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        for loop in template.find_all(nodes.For):
            loop.iter = _filtered("_each", loop.iter)
        for block in template.find_all(nodes.AssignBlock):
            block.filter = _filtered("_bounded", block.filter)
        for parent in [template, *template.find_all(nodes.Node)]:
            _replace_concat(parent)
        template.set_environment(self)
        template.set_lineno(1)
        return template

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Refuse an operation whose result would be out of bounds, else do it."""
        _check_operation(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Count the call, check what it would build, and do it."""
        _budget.get().step(_CALL)
        owner = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)
        if isinstance(owner, str):
            _check_text_call(getattr(__obj, "__name__", ""), (owner, *args, *kwargs.values()))
        elif isinstance(owner, list) and args and isinstance(args[0], list):
            _check_size(len(owner) + len(args[0]))
        return _bounded(super().call(__context, __obj, *args, **kwargs))


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
    token = _budget.set(_Budget())
    pieces: list[str] = []
    length = 0
    try:
        for piece in template.generate(**values):
            length += len(piece)
            if length > MAX_TEXT:
                raise SecurityError(f"the template writes more than {MAX_TEXT:,} characters")
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
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Hugging Face's `tojson`: unlike jinja2's it escapes no HTML and keeps the order of keys."""
    if indent is not None:
        _check_width(indent)
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _filtered(name: str, node: nodes.Node | None) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None)


def _replace_concat(parent: nodes.Node) -> None:
    """Make every `a ~ b` below `parent` a checked filter: jinja2 cannot intercept that operator."""
    for field, value in parent.iter_fields():
        if isinstance(value, nodes.Concat):
            setattr(parent, field, _filtered("_concat", nodes.List(value.nodes)))
        elif isinstance(value, list):
            value[:] = [
                _filtered("_concat", nodes.List(item.nodes)) if isinstance(item, nodes.Concat) else item
                for item in value
            ]


class _each:  # noqa: N801  (a filter)
    """An iterable whose passes are counted."""

    def __init__(self, iterable: Iterable[Any]) -> None:
        self._iterable = iterable

    def __iter__(self) -> Iterator[Any]:
        step = _budget.get().step
        for item in self._iterable:
            step()
            yield item

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]  # TypeError is what jinja2 expects


def _concat(values: list[Any]) -> str:
    texts = [str(value) for value in values]
    _check_size(sum(map(len, texts)))
    return "".join(texts)


def _bounded(value: Any) -> Any:
    if isinstance(value, str | list | dict):
        _check_size(len(value))
    return value


def _checked(name: str, function: Any) -> Any:
    """A jinja2 filter whose text arguments are checked first."""
    takes_context = getattr(function, "jinja_pass_arg", None)

    def checked(*args: Any, **kwargs: Any) -> Any:
        _check_text_call(name, (*(args[1:] if takes_context else args), *kwargs.values()))
        return _bounded(function(*args, **kwargs))

    if takes_context:
        checked.jinja_pass_arg = takes_context  # type: ignore[attr-defined]
    return checked


def _check_size(size: int) -> None:
    if size > MAX_TEXT:
        raise SecurityError(f"the template builds a value of more than {MAX_TEXT:,} characters or items")


def _check_width(width: Any) -> None:
    size = len(width) if isinstance(width, str) else width
    if isinstance(size, int) and abs(size) > _MAX_WIDTH:
        raise SecurityError(f"the template pads or indents by more than {_MAX_WIDTH:,} characters")


def _check_format(pattern: str, arguments: Iterable[Any]) -> None:
    digits = 0
    for character in pattern:
        digits = digits + 1 if character.isdigit() else 0
        if digits > 3:
            raise SecurityError("the template formats with a width of more than 999 characters")
    if "*" in pattern or _NESTED_WIDTH.search(pattern):
        for argument in arguments:
            _check_width(argument)


def _check_text_call(name: str, values: tuple[Any, ...]) -> None:
    """Refuse a text method or filter called `name` on `values` (the text first) that would build too much."""
    texts = [value for value in values if isinstance(value, str)]
    if name in _PADDING or name == "indent":
        for width in values[1:]:
            _check_width(width)
        if name in {"expandtabs", "indent"}:
            _check_size(
                len(texts[0]) + (texts[0].count("\n") + texts[0].count("\t")) * _MAX_WIDTH if texts else 0
            )
    elif name == "replace" and len(texts) >= 3:
        _check_size(len(texts[0]) + texts[0].count(texts[1]) * len(texts[2]))
    elif name == "join":
        _check_join(values)
    elif name in {"format", "format_map"} and texts:
        _check_format(texts[0], values[1:])


def _check_join(values: tuple[Any, ...]) -> None:
    """A join is written `separator.join(items)` or `items | join(separator)`."""
    items = [value for value in values if isinstance(value, list | tuple)]
    separators = [value for value in values if isinstance(value, str)]
    for sequence in items:
        widest = max(map(len, separators), default=0)
        _check_size(sum(len(str(item)) + widest for item in sequence))


def _check_operation(operator: str, left: Any, right: Any) -> None:
    if operator == "%" and isinstance(left, str):
        values = right if isinstance(right, tuple) else (right,)
        _check_format(left, values)
        return
    sized = [value for value in (left, right) if isinstance(value, str | list | tuple)]
    whole = [value for value in (left, right) if isinstance(value, int)]
    if operator == "+" and len(sized) == 2:
        _check_size(len(left) + len(right))
    elif operator == "*" and sized and whole:
        _check_size(len(sized[0]) * whole[0])
    elif len(whole) == 2 and operator in {"*", "**"}:
        bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
        if bits > _MAX_BITS:
            raise SecurityError("the template computes a number that is too large")
