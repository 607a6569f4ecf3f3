"""The tree of errors is as it is drawn, and an error is the same one in another process."""

from __future__ import annotations

import pickle
import re

import pytest

from localagent import errors
from localagent.errors import ContextOverflow, ServerRefused, UsageError

DRAWN = re.compile(r"^    ((?:[│ ]   )*(?:[├└]── )?)([A-Z]\w+)(?:   |$)", re.MULTILINE)


def test_the_tree_is_as_it_is_drawn():
    parents: list[str] = []
    for lines, name in DRAWN.findall(errors.__doc__):
        parents = [*parents[: len(lines) // 4], name]
        kind = getattr(errors, name)
        assert kind.__base__.__name__ == (parents[-2] if len(parents) > 1 else "Exception"), name
        assert kind.exit_code == (2 if issubclass(kind, UsageError) else 1), name
    drawn = {name for _, name in DRAWN.findall(errors.__doc__)}
    assert drawn == {name for name, kind in vars(errors).items() if isinstance(kind, type)}


OVERFLOW = (
    "the prompt has {}12,345 tokens and the context window holds 4,096: shorten the prompt or load the model "
    "with a larger context"
)


@pytest.mark.parametrize(("exact", "more"), [((), ""), ((True,), ""), ((False,), "more than ")])
def test_a_prompt_that_does_not_fit_says_by_how_much(exact, more):
    error = ContextOverflow(12_345, 4096, *exact)
    assert str(error) == OVERFLOW.format(more)
    assert (error.prompt_tokens, error.context, error.exact) == (12_345, 4096, not more)


KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type)]
MADE = [ContextOverflow(12, 8, exact=False), ServerRefused("too busy", 429, 2.5), ServerRefused("gone", 404)]
MADE += [kind("what, where") for kind in KINDS if kind not in map(type, MADE)]


@pytest.mark.parametrize("error", MADE, ids=lambda error: type(error).__name__)
def test_another_process_gets_it_as_it_is(error):
    error.note = "added later"
    there = pickle.loads(pickle.dumps(error))
    assert (type(there), there.args, vars(there)) == (type(error), error.args, vars(error))


def test_a_refusal_tells_its_status_and_when_to_ask_again():
    error = ServerRefused("too busy", 429, 2.5)
    assert (str(error), error.status, error.wait) == ("too busy", 429, 2.5)
    assert ServerRefused("not there", 404).wait is None
