"""Questions about calls, without a terminal: what is shown, and what may be edited."""

from __future__ import annotations

import json

import pytest

from localagent.agent import Allow, ApprovalRequest, Edit
from localagent.cli import approving
from localagent.messages import ToolCallPart
from localagent.tools import tool

HIDDEN = "a\u202eb\u200bc\u2028d\x1b\x07\U000e0041"


@tool(name="keep.it", side_effects=True)
def keep_it(text: str) -> str:
    """Keep a text."""
    return text


@pytest.fixture
def asked(monkeypatch):
    """Answers questions with what is put into the list; what was asked is the result."""

    def ask(arguments, *answers, changed=False):
        shown = []
        waiting = list(answers)

        def typed(question, default=""):
            shown.append(question + default)
            return default if waiting[0] is None and waiting.pop(0) is None else waiting.pop(0)

        monkeypatch.setattr(approving, "on_terminal", lambda: True)
        monkeypatch.setattr(approving, "_forget_typed", lambda: None)
        monkeypatch.setattr(approving, "_typed", typed)
        approver = approving.TerminalApprover(shown.append, lambda: None)
        call = ToolCallPart(id="c1", name="keep_it", arguments=arguments)
        return approver([ApprovalRequest(call, keep_it, changed)]), shown

    return ask


def test_all_of_a_call_is_shown_and_nothing_is_hidden(asked):
    text = HIDDEN + "long " * 20_000 + "end"
    decisions, shown = asked({"text": text}, "y")
    assert decisions == [Allow()]
    assert len(shown[0]) > len(text)
    assert all(line.isprintable() for line in shown)
    assert shown[0].endswith('end")')
    assert shown[1].startswith("keep.it: ")  # the call itself has left the screen by now


def test_what_is_edited_hides_nothing_either(asked):
    [decision], shown = asked({"text": HIDDEN}, "e", None)
    assert decision == Edit({"text": HIDDEN})
    assert shown[-1].isprintable()
    assert json.loads(shown[-1].removeprefix("arguments: ")) == {"text": HIDDEN}


def test_a_tool_that_changed_since_it_was_allowed_is_said(asked):
    _, shown = asked({"text": "a"}, "y", changed=True)
    assert shown[0] == "keep.it has changed since you answered 'always'"
    assert shown[1].startswith("may it run? keep.it(")
