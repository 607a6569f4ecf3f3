"""Questions about calls, without a terminal: what is shown, and what may be edited."""

from __future__ import annotations

import json
import threading

import pytest

from localagent.agent import Allow, ApprovalRequest, Deny, Edit
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


@tool(name="add", side_effects=True)
def add(a: int, b: int = 1) -> int:
    """Add."""
    return a + b


@pytest.fixture
def terminal(monkeypatch):
    """An approver whose user answers what is put into the list; an exception is what happens meanwhile."""

    def make(*answers, on_terminal=True):
        shown, waiting = [], list(answers)
        stop = threading.Event()

        def typed(question, default=""):
            shown.append((question, default))
            answer = waiting.pop(0)
            if isinstance(answer, BaseException):
                raise answer
            return answer

        forgotten = []
        monkeypatch.setattr(approving, "on_terminal", lambda: on_terminal)
        monkeypatch.setattr(approving, "_forget_typed", lambda: forgotten.append(len(shown)))
        monkeypatch.setattr(approving, "_typed", typed)
        approver = approving.TerminalApprover(shown.append, lambda: stop)

        def ask(*calls):
            parts = [ToolCallPart(id=str(at), name="add", arguments=call) for at, call in enumerate(calls)]
            decisions = approver([ApprovalRequest(part, add, False) for part in parts])
            assert waiting == [], "an answer was not asked for"
            assert forgotten == ([0] if on_terminal else []), "keys pressed earlier are no answers"
            return decisions, shown, stop.is_set()

        return ask

    return make


@pytest.mark.parametrize(
    ("answer", "decision"),
    [
        ("y", Allow()), ("yes", Allow()), (" Y ", Allow()), ("n", Deny()), ("no", Deny()), ("NO", Deny()),
        ("a", Allow(always=True)), ("always", Allow(always=True)),
        ("never", Deny(always=True)), ("v", Deny(always=True)),
    ],
)  # fmt: skip
def test_an_answer_is_a_decision(terminal, answer, decision):
    decisions, shown, stopped = terminal(answer)({"a": 1})
    assert decisions == [decision]
    assert shown == ["may it run? add(a=1)", ("add: yes, no, always, never, edit or stop? ", "")]
    assert not stopped


@pytest.mark.parametrize("answer", ["", "maybe", "yess", "always yes", "q"])
def test_anything_else_is_no_answer(terminal, answer):
    decisions, shown, _ = terminal(answer, "n")({"a": 1})
    assert decisions == [Deny()]
    assert shown[2].startswith("y runs it, n does not, ")
    assert shown[3] == shown[1], "it is asked again"


def test_calls_are_asked_about_one_by_one(terminal):
    decisions, shown, _ = terminal("y", "n", "a")({"a": 1}, {"a": 2}, {"a": 3})
    assert decisions == [Allow(), Deny(), Allow(always=True)]
    assert [text for text in shown if isinstance(text, str)] == [
        "may it run (1 of 3)? add(a=1)", "may it run (2 of 3)? add(a=2)", "may it run (3 of 3)? add(a=3)",
    ]  # fmt: skip


@pytest.mark.parametrize("end", ["s", "stop", KeyboardInterrupt(), EOFError()])
def test_stopping_denies_what_is_left_and_ends_the_answer(terminal, end):
    decisions, _, stopped = terminal("y", end)({"a": 1}, {"a": 2}, {"a": 3}, {"a": 4})
    assert decisions == [Allow(), approving.STOPPED, approving.STOPPED, approving.STOPPED]
    assert stopped


def test_stopping_where_no_answer_is_running(monkeypatch):
    monkeypatch.setattr(approving, "on_terminal", lambda: True)
    monkeypatch.setattr(approving, "_forget_typed", lambda: None)
    monkeypatch.setattr(approving, "_typed", lambda *_: "s")
    approver = approving.TerminalApprover(lambda _: None, lambda: None)
    call = ToolCallPart(id="c", name="add", arguments={"a": 1})
    assert approver([ApprovalRequest(call, add, False)]) == [approving.STOPPED]


def test_nobody_is_asked_in_a_pipe(terminal):
    decisions, shown, stopped = terminal(on_terminal=False)({"a": 1}, {"a": 2})
    assert decisions == [Deny("nobody is here to approve it: --allow add lets it run")] * 2
    assert (shown, stopped) == ([], False)


def test_arguments_are_edited_until_they_fit(terminal):
    decisions, shown, _ = terminal("e", '{"a": "x"}', "{", '{"a": 2}')({"a": 1, "b": 5})
    assert decisions == [Edit({"a": 2})]
    edits = [each for each in shown if each[0] == "arguments: "]
    assert [default for _, default in edits] == ['{"a": 1, "b": 5}', '{"a": "x"}', "{"], (
        "nothing typed is lost"
    )
    refusals = [each for each in shown if isinstance(each, str) and each.startswith("these do not fit: ")]
    assert len(refusals) == 2
    assert all(each.endswith("; leave the line empty to go back") and "\n" not in each for each in refusals)


@pytest.mark.parametrize("empty", ["", "  "])
def test_an_empty_line_goes_back_to_the_question(terminal, empty):
    decisions, shown, _ = terminal("edit", empty, "y")({"a": 1})
    assert decisions == [Allow()]
    assert shown[1] == shown[-1]
