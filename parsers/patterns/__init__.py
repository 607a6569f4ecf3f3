"""Regular expressions for text that is still arriving.

Python's `re` needs the whole text, cannot say where a match might still begin, and takes exponential time for
some expressions. Here an expression becomes a list of steps whose alternatives are all followed side by side,
one character at a time (Pike's machine, https://swtch.com/~rsc/regexp/regexp2.html). So a search takes time
linear in the text, whatever the expression, and it is known at any time up to where nothing can match any
more. Found is the leftmost match, and of those that begin there the one that `re` finds.

What looks at the text around a match (lookaround, word boundaries, references to groups) is refused, and so
is whatever `re` and the `regex` package could read differently.
"""

from .expression import (
    ANY,
    SPACE,
    Choice,
    Group,
    InvalidPattern,
    Literal,
    Node,
    OneOf,
    Repeat,
    Row,
    literals,
    parse,
)
from .program import TAG, Pattern, compile_pattern
from .search import Found, Patterns

__all__ = [
    "ANY",
    "SPACE",
    "TAG",
    "Choice",
    "Found",
    "Group",
    "InvalidPattern",
    "Literal",
    "Node",
    "OneOf",
    "Pattern",
    "Patterns",
    "Repeat",
    "Row",
    "compile_pattern",
    "literals",
    "parse",
]
