"""What the programs of this folder share: they run in environments of their own and know nothing of this project."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace


@contextmanager
def answers() -> Iterator[tuple[SimpleNamespace, Callable[[str, object], None]]]:
    """What is given on the command line, and a function that prints what came of a scene, a line each.

    The program then lives until its standard input is closed, so that what it broke off is seen to be broken off
    by it and not by its end.
    """
    given = SimpleNamespace(**json.loads(sys.argv[1]))
    out, sys.stdout = sys.stdout, sys.stderr
    yield given, lambda scene, came: print(json.dumps([scene, came]), file=out, flush=True)
    sys.stdin.read()
