"""What a person sees of the events of a run: rendered on a terminal, plain text elsewhere."""

from __future__ import annotations

import sys

from localagent.cli.show.view import StreamView
from localagent.cli.terminal import takes_escapes

View = StreamView
"""What `open_view` returns: `show`, `waiting`, `toggle_reasoning`, `end`, and a context that ends it."""


def open_view(*, answers: bool = True, warned: set[str] | None = None, keys: bool = True) -> View:
    """A view that suits standard output.

    `answers`: also show the model's text and reasoning, not only its calls. `warned`: the warnings that have
    been shown. `keys`: somebody calls `toggle_reasoning` when Ctrl-T is pressed; without, reasoning is not
    folded.
    """
    if not takes_escapes(sys.stdout):
        return StreamView(answers=answers, warned=warned)
    from localagent.cli.show.live import LiveView

    return LiveView(answers=answers, warned=warned, keys=keys)
