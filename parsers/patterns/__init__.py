"""Regular expressions for text that is still arriving: `expression` reads them, `search` looks for them.

Python's `re` needs the whole text, cannot say where a match might still begin, and takes exponential time for
some expressions. Here an expression becomes a list of steps whose alternatives are all followed side by side,
one character at a time (Pike's machine, https://swtch.com/~rsc/regexp/regexp2.html). So a search takes time
linear in the text, whatever the expression, and it is known at any time up to where nothing can match any
more. The leftmost match counts, and of those that begin there the one that `re` finds.

Read is what declared formats use: text, classes, groups, alternatives, `*`, `+`, `?`, `^` and `$`. What looks
at the text around a match (lookaround, word boundaries, references to groups) is refused, and so are counts
and whatever `re` and the `regex` package could read differently.
"""
