"""Parsers under test: each runs in a child process, which may be another Python than this one.

child        the process: requests on standard input, answers on standard output, a line of JSON each
ours         the parsers of this package
mlx_lm       mlx-lm, as its server reads an output
transformers the response parsing of transformers, with the templates that its own server falls back to
sglang       SGLang's reasoning parsers and function-call detectors, as its server uses them
llamacpp     llama.cpp's chat parser, through a small program of its own: llamacpp.cpp

`child` loads the others from their files, in a Python that need not have localagent. Each has NAME, the text
that people read; DIALECTS, the dialects that the parser claims, each with what it calls them; perhaps
NEEDS_TOOLS, if it reads no calls where no tools are declared, and FLAGS, if `special` tells it which pieces
are special tokens; `load()`, which returns the version and raises ImportError; and

    read(dialect, pieces, streamed, request) -> {"content", "reasoning", "tool_calls": [{"name", "arguments"},
    ...]}

`streamed`: the pieces are given one after the other, and what comes out is put together as a client would.
What `read` raises is the answer `error`.
"""
