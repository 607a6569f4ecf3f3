"""jinja2 as chat templates expect it, with everything charged: compiling and rendering.

Knows what Hugging Face adds to jinja2. Contract: see the package; whatever goes wrong is a TemplateFailed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes, pass_environment
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import SandboxedEnvironment

from localagent.errors import TemplateFailed
from localagent.sandbox.budget import REFERENCE, Budget, current_budget, weigh
from localagent.sandbox.charging import CHARGES, COMPARING, WRITING, Charged, charge_filter, charge_test
from localagent.sandbox.checks import check_call, check_operation, check_width

MAX_SOURCE = 1_000_000
_CALL = 100
_LEAVE_OUT = (
    *("batch", "center", "filesizeformat", "pprint", "random", "slice", "striptags", "urlize"),
    *("wordwrap", "xmlattr"),
)


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks text for training; here it is just its body."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the body in place of the tag."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


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
        self.filters = {name: charge_filter(name, made) for name, made in self.filters.items()}
        self.filters |= CHARGES
        for name in COMPARING | WRITING:
            self.tests[name] = charge_test(name, self.tests[name])
        self.globals |= {"raise_exception": _raise, "strftime_now": _now}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template: nodes.Template = Charged().visit(super()._parse(source, name, filename))
        template.set_environment(self)
        template.set_lineno(1)
        return template

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Refuse an operation whose result would be out of bounds, else do it and charge it."""
        check_operation(operator, left, right)
        return current_budget.get().made(super().call_binop(context, operator, left, right), REFERENCE)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Charge the call, check what it would build, and do it."""
        budget = current_budget.get()
        budget.spend(_CALL)
        args = check_call(__obj, args, kwargs)
        return budget.made(super().call(__context, __obj, *args, **kwargs))

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Charge a key that is hashed, and written into the message when it is missing."""
        if isinstance(argument, list | tuple | dict):
            current_budget.get().weigh(argument)
        return super().getitem(obj, argument)


def compile_template(source: str) -> Template:
    """Compile a chat template. Raises TemplateFailed."""
    if len(source) > MAX_SOURCE:
        raise TemplateFailed(f"the chat template is longer than {MAX_SOURCE:,} characters")
    token = current_budget.set(Budget())  # constant folding runs filters
    try:
        return _Environment().from_string(source)
    except Exception as error:  # foreign code: jinja2 and the compiler below it raise many kinds
        raise TemplateFailed(f"the chat template cannot be compiled: {_one_line(error)}") from error
    finally:
        current_budget.reset(token)


def render_template(template: Template, values: Mapping[str, Any]) -> str:
    """Render with `values`, which the template may change. Raises TemplateFailed."""
    budget = Budget(weigh(values, float("inf")))
    token = current_budget.set(budget)
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
        current_budget.reset(token)
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
    check_width(indent)
    per_level = len(indent) if isinstance(indent, str) else indent or 0
    current_budget.get().weigh(value, sum(map(len, separators or ())), max(0, per_level))
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


@pass_environment
def _join(environment: _Environment, value: Any, d: str = "", attribute: str | int | None = None) -> str:
    if attribute is not None:
        value = map(make_attrgetter(environment, attribute), value)
    items = list(value)
    separator = str(d)
    current_budget.get().weigh(items, per_item=len(separator))
    return separator.join(map(str, items))


def _raise(message: Any) -> NoReturn:
    current_budget.get().weigh(message)
    raise TemplateError(str(message))


def _now(pattern: str) -> str:
    check_width(pattern)
    return datetime.now().strftime(pattern)
