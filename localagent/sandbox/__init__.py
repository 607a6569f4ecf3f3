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

from localagent.sandbox.environment import compile_template, render_template

__all__ = ["compile_template", "render_template"]
