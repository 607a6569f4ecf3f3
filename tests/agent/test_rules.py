"""Rules see what runs, an "always" undoes no rule that denies, and what is no approval is refused."""

from __future__ import annotations

import enum
import threading
import time
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, PlainSerializer, StringConstraints

from localagent.agent import Agent, Allow, ApprovalGiven, Approvals, Deny, Edit, Rule, ToolEnded, ToolProgress
from localagent.agent.approvals import as_approvals
from localagent.agent.slot import EDITED
from localagent.errors import InvalidArguments, UsageError
from localagent.messages import ToolCallPart
from localagent.tools import Tool, ToolSet, tool
from tests.agent.replaying import block, follow, lines, scripted


class Mode(enum.Enum):
    READ = "read"


def serialized(value: Any) -> Any:
    raise RuntimeError("a serializer that fails")


def as_path(text: str) -> Path:
    return Path(text)


@tool(side_effects=True)
def write_file(path: str, text: str = "", mode: str = "safe") -> str:
    """Write."""
    return f"wrote {path}"


@tool
def kill(pid: int, hard: bool = False) -> str:
    """Kill."""
    return f"killed {pid}"


@tool
def odd(
    price: Decimal = Decimal(0),
    place: Path = Path(),
    mode: Mode = Mode.READ,
    word: Annotated[str, StringConstraints(strip_whitespace=True)] = "",
    silent: Annotated[str, PlainSerializer(serialized)] | None = None,
    shape: Annotated[str, AfterValidator(as_path)] = "a",
    share: float = 0.5,
    names: list[str] | None = None,
) -> str:
    """Parameters of all sorts."""
    return "ok"


def _listed_tool() -> Tool:
    """A tool as one of a server, which takes arguments by names of its own."""
    properties = {"file-path": {"type": "string"}, "files": {"type": "array"}}
    return Tool(
        name="srv.write-it",
        description="",
        parameters={"type": "object", "properties": properties},
        bind=lambda arguments: lambda context: arguments["file-path"],
    )


TOOLS = ToolSet([write_file, kill, odd, _listed_tool()])

ETC = {"path": "/etc/*"}
NOTES = {"path": "notes/*"}
FITTING = [
    # names of arguments
    (Rule("deny", "write_file", ETC), "write_file", {"Path": "/etc/passwd"}, True),
    (Rule("deny", "write_file", {"PATH": "/etc/*"}), "write_file", {"path": "/etc/passwd"}, True),
    (Rule("allow", "write_file", NOTES), "write_file", {"Path": "notes/a"}, True),
    (Rule("deny", "srv*", {"file-path": "/etc/*"}), "srv.write-it", {"file_path": "/etc/a"}, True),
    (Rule("deny", "srv*", {"file_path": "/etc/*"}), "srv.write-it", {"file_path": "/etc/a"}, True),
    (Rule("deny", "write_file", {"way": "*"}), "write_file", {"path": "a"}, False),
    # names of tools
    (Rule("deny", "write-file"), "write_file", {"path": "a"}, True),
    (Rule("deny", "Write.File"), "write_file", {"path": "a"}, True),
    (Rule("deny", "srv_write_it"), "srv.write-it", {"file_path": "a"}, True),
    (Rule("deny", "srv.write-*"), "srv.write-it", {"file_path": "a"}, True),
    (Rule("deny", "write"), "write_file", {"path": "a"}, False),
    (Rule("deny", "kill?"), "kill", {"pid": 1}, False),
    # values as the tool gets them
    *((Rule("deny", "kill", {"pid": "1"}), "kill", {"pid": pid}, True) for pid in (1, 1.0, " 1", "01", "1")),
    (Rule("deny", "kill", {"pid": "1"}), "kill", {"pid": 11}, False),
    (Rule("ask", "kill", {"pid": "1"}), "kill", {"pid": "01"}, True),
    (Rule("allow", "kill", {"pid": "1"}), "kill", {"pid": 1}, True),
    (Rule("allow", "kill", {"pid": "1"}), "kill", {"pid": 1.0}, True),
    (Rule("allow", "kill", {"pid": "1"}), "kill", {"pid": "01"}, False),
    (Rule("allow", "kill", {"pid": "01"}), "kill", {"pid": "01"}, False),
    (Rule("deny", "kill", {"pid": "01"}), "kill", {"pid": "01"}, True),
    (Rule("deny", "kill", {"hard": "true"}), "kill", {"pid": 1, "hard": "yes"}, True),
    (Rule("deny", "kill", {"pid": "null"}), "kill", {"pid": 1}, False),
    (Rule("deny", "odd", {"names": '["é*'}), "odd", {"names": ["été"]}, True),
    (Rule("deny", "odd", {"share": "0"}), "odd", {"share": 0.5}, False),
    # where nobody can say what the tool would get
    (Rule("deny", "kill", {"pid": "x"}), "kill", {"pid": "x"}, True),
    (Rule("ask", "kill", {"pid": "x"}), "kill", {"pid": "x"}, True),
    (Rule("deny", "kill", {"pid": "y"}), "kill", {"pid": "x"}, False),
    (Rule("allow", "kill", {"pid": "x"}), "kill", {"pid": "x"}, False),
    (Rule("allow", "kill"), "kill", {"pid": "x"}, True),  # about every call, also one that cannot run
    (Rule("deny", "odd", {"price": "1"}), "odd", {"price": "1.00"}, True),
    (Rule("deny", "odd", {"word": "secret"}), "odd", {"word": "  secret "}, True),
    (Rule("deny", "odd", {"mode": "read"}), "odd", {"mode": "read"}, True),
    (Rule("deny", "odd", {"silent": "x"}), "odd", {"silent": "x"}, True),
    (Rule("deny", "odd", {"shape": "a/b"}), "odd", {"shape": "a/b"}, True),
    (Rule("deny", "odd", {"share": "1"}), "odd", {"share": 1.0}, True),
    (Rule("deny", "odd", {"share": "1.0"}), "odd", {"share": 1}, True),
    # what the function falls back on runs as well
    (Rule("deny", "write_file", {"mode": "safe"}), "write_file", {"path": "a"}, True),
    (Rule("allow", "write_file", {"mode": "safe"}), "write_file", {"path": "a"}, False),
    (Rule("deny", "odd", {"names": "*"}), "odd", {}, False),
    # paths
    (Rule("allow", "write_file", NOTES), "write_file", {"path": "notes/a"}, True),
    (Rule("allow", "write_file", NOTES), "write_file", {"path": "notes/..a/b.."}, True),
    (Rule("allow", "write_file", NOTES), "write_file", {"path": "notes/../.ssh/keys"}, False),
    (Rule("allow", "write_file", NOTES), "write_file", {"path": "notes/.."}, False),
    (Rule("allow", "write_file", NOTES), "write_file", {"path": "notes/a\\..\\..\\b"}, False),
    (Rule("allow", "write_file", {"path": "../shared"}), "write_file", {"path": "../shared"}, True),
    (Rule("allow", "write_file", {"path": "*"}), "write_file", {"path": "../shared"}, True),
    (Rule("allow", "odd", {"names": '["notes/*'}), "odd", {"names": ["notes/a", "../b"]}, False),
    (Rule("allow", "odd", {"names": '["notes/*'}), "odd", {"names": ["notes/a"]}, True),
    (Rule("deny", "write_file", ETC), "write_file", {"path": "/tmp/../etc/passwd"}, True),
    (Rule("deny", "write_file", ETC), "write_file", {"path": "//etc/passwd"}, True),
    (Rule("deny", "write_file", ETC), "write_file", {"path": "/etc"}, False),
    (Rule("ask", "write_file", {"path": "keys/*"}), "write_file", {"path": "./x/../keys/a"}, True),
    (Rule("deny", "write_file", {"path": "./keys/*"}), "write_file", {"path": "keys/a"}, True),
    (Rule("deny", "write_file", {"path": "C:\\keys\\*"}), "write_file", {"path": "C:/x/../keys/a"}, True),
    (Rule("deny", "odd", {"names": '*"/etc/*'}), "odd", {"names": ["a", "/x/../etc/a"]}, True),
    (Rule("deny", "srv*", {"files": '*"/etc/*'}), "srv.write-it", {"files": [{"p": "/x/../etc/a"}]}, True),
    (Rule("allow", "srv*", {"files": "*notes*"}), "srv.write-it", {"files": [{"p": "notes/../a"}]}, False),
    (Rule("deny", "write_file", {"path": ""}), "write_file", {"path": ""}, True),
    (Rule("deny", "write_file", {"path": ""}), "write_file", {"path": "."}, False),
]


@pytest.mark.parametrize(("rule", "name", "arguments", "fits"), FITTING)
def test_what_a_rule_fits(rule, name, arguments, fits):
    found = TOOLS.find(name)
    assert rule.fits(found, ToolCallPart(id="c", name=name, arguments=arguments)) is fits


def test_the_normal_form_is_what_the_function_gets():
    found = odd.normal({"Price": "1.50", "place": "a/./b", "word": " x "})
    defaults = {"mode": "read", "shape": "a", "share": 0.5}
    assert found == {"price": 1.5, "place": "a/b", "word": "x", **defaults}
    with pytest.raises(InvalidArguments, match="pid"):
        kill.normal({"pid": "x"})
    listed = TOOLS.find("srv.write-it")
    assert listed.normal({"file_path": "a", "other": 1}) == {"file-path": "a", "other": 1}


def test_a_denied_call_does_not_run_however_it_is_spelled():
    calls = block("kill(PID=1)", "kill(pid=1.0)", "kill(pid='01')", "kill(pid=2)")
    _, done = follow(
        Agent(scripted(calls, "x"), [kill], approvals=Approvals([Rule("deny", "kill", {"pid": "1"})]))
    )
    assert [result.is_error for result in done.messages[2].results] == [True, True, True, False]


# -- what is bound when ------------------------------------------------------------------------------------


def watched(bound: list[Any], **options: Any) -> Tool:
    """A tool that writes down what is bound to it, and brought to its normal form."""

    def bind(arguments: Any) -> Any:
        bound.append(arguments)
        return lambda context: "ran"

    def normalise(arguments: Any) -> dict[str, Any]:
        bound.append("normal")
        return dict(arguments)

    parameters = {"type": "object", "properties": {"path": {"type": "string"}}}
    return Tool(
        name="touch", description="", parameters=parameters, bind=bind, normalise=normalise, **options
    )


@pytest.mark.parametrize(
    "approvals",
    [
        None,
        lambda requests: [Deny()],
        lambda requests: [Deny(always=True)],
        [Rule("deny", "touch")],
        [Rule("deny", "touch", {"path": "a"})],
    ],
)
def test_a_denied_call_is_not_bound(approvals):
    bound: list[Any] = []
    agent = Agent(
        scripted(block("touch(path='a')"), "x"), [watched(bound, side_effects=True)], approvals=approvals
    )
    _, done = follow(agent)
    assert done.messages[2].results[0].text.startswith("Denied")
    assert bound == []


def test_a_call_is_bound_once_and_after_the_approval():
    bound: list[Any] = []

    def approve(requests: list[Any]) -> list[Allow]:
        assert bound == []
        return [Allow()]

    tools = [watched(bound, side_effects=True)]
    _, done = follow(Agent(scripted(block("touch(path='a')"), "x"), tools, approvals=approve))
    assert lines(done.messages)[2] == "tool: ran"
    assert bound == [{"path": "a"}]


def test_binding_counts_as_time_of_the_call():
    given_up, bound, begun, ran = threading.Event(), threading.Event(), [], []

    def wait(value: str) -> str:
        begun.append(value)
        given_up.wait(10)
        bound.set()
        return value

    @tool(timeout=1.5)
    def slow(word: Annotated[str, AfterValidator(wait)]) -> str:
        ran.append(word)
        return "never"

    _, done = follow(Agent(scripted(block("slow(word='a')", "kill(pid=1)"), "x"), [slow, kill]))
    given_up.set()
    assert begun == ["a"], "nobody waited for it elsewhere"
    assert bound.wait(10)
    time.sleep(0.1)
    assert ran == [], "what was given up does not begin"
    assert [result.is_error for result in done.messages[2].results] == [True, False]
    assert "did not answer within 1.5 seconds" in done.messages[2].results[0].text


def test_what_a_validator_prints_is_no_progress(capsys):
    def shout(value: str) -> str:
        print(f"checking {value}")
        return value

    @tool
    def check(word: Annotated[str, AfterValidator(shout)]) -> str:
        return word

    events, _ = follow(Agent(scripted(block("check(word='a')"), "x"), [check]))
    assert not [event for event in events if isinstance(event, ToolProgress)]
    assert "checking a\n" in capsys.readouterr().out


# -- answers for good -------------------------------------------------------------------------------------

YES, NEVER = Allow(always=True), Deny("never", always=True)


def decided(rules: list[Rule], remembered: Any, path: str) -> str:
    approvals = Approvals(rules)
    approvals.remember(write_file, remembered)
    found = approvals.decide(write_file, ToolCallPart(id="c", name="write_file", arguments={"path": path}))
    return "ask" if found is None else type(found).__name__.lower()


@pytest.mark.parametrize(
    ("rules", "remembered", "decision"),
    [
        ([], Allow(), "ask"),
        ([], YES, "allow"),
        ([], NEVER, "deny"),
        ([Rule("ask", "write_file", ETC)], YES, "ask"),
        ([Rule("ask", "write_file", ETC)], NEVER, "deny"),
        ([Rule("ask", "*")], Allow(), "ask"),
        ([Rule("ask", "*")], YES, "allow"),
        ([Rule("ask", "*"), Rule("ask", "write_file", ETC)], YES, "ask"),
        ([Rule("ask", "*"), Rule("deny", "write_file", ETC)], YES, "deny"),
        ([Rule("deny", "write_file", ETC)], YES, "deny"),
        ([Rule("deny", "write_file")], YES, "deny"),
        ([Rule("ask", "*"), Rule("deny", "*")], YES, "deny"),
        ([Rule("allow", "write_file", ETC)], Allow(), "allow"),
        ([Rule("allow", "write_file", ETC)], NEVER, "deny"),
        ([Rule("allow", "*"), Rule("deny", "*")], YES, "allow"),
        ([Rule("ask", "write_file", NOTES)], YES, "allow"),
    ],
)
def test_the_order_of_rules_and_answers(rules, remembered, decision):
    assert decided(rules, remembered, "/etc/x") == decision


class Press:
    """Something to call that cannot be hashed."""

    __hash__ = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Press)

    def __call__(self) -> str:
        """Press."""
        return "pressed"


def press() -> str:
    """Press."""
    return "pressed"


def press_harder() -> str:
    """Press."""
    return "broken"


def plain(**changes: Any) -> Tool:
    fields = {"name": "press", "description": "Press.", "parameters": PRESSED, "bind": bound_to_nothing}
    return Tool(**{**fields, **changes})


def shown() -> Tool:
    """As a run has it, which is another object each time."""
    return next(iter(ToolSet([plain()])))


def bound_otherwise(arguments: Any) -> Any:
    return lambda context: "broken"


PRESSED = {"type": "object", "properties": {"how-hard": {"type": "integer"}}}
WIDER = {"type": "object", "properties": {"how-hard": {"type": "number"}}}


def bound_to_nothing(arguments: Any) -> Any:
    return lambda context: "pressed"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (tool(press), tool(press), True),
        (tool(press), tool(press, name="push"), False),
        (tool(press), tool(press, description="Push."), False),
        (tool(press), tool(press, side_effects=True), False),
        (tool(press), tool(press, kind="edit"), False),
        (tool(press), tool(press_harder, name="press"), False),
        (tool(press), plain(), False),
        (tool(Press(), name="press"), tool(Press(), name="press"), False),
        (plain(), plain(), True),
        (shown(), shown(), True),
        (plain(), plain(parameters=WIDER), False),
        (plain(), plain(bind=bound_otherwise), False),
        (plain(origin="a"), plain(origin="a", bind=bound_otherwise), True),
        (plain(origin="a"), plain(origin="b"), False),
    ],
)
def test_always_is_said_of_one_tool(one, other, same):
    approvals = Approvals([Rule("ask")])
    approvals.remember(one, Allow(always=True))
    call = ToolCallPart(id="c", name="press")
    assert approvals.decide(one, call) == Allow(always=True)
    assert approvals.decide(other, call) == (Allow(always=True) if same else None)
    assert approvals.has_changed(other) is (not same and other.name == "press")
    approvals.forget()
    assert approvals.decide(one, call) is None
    assert not approvals.has_changed(other)


def test_never_is_said_of_a_name():
    approvals = Approvals([Rule("allow")])
    approvals.remember(tool(press), NEVER)
    call = ToolCallPart(id="c", name="press")
    assert approvals.decide(tool(press_harder, name="press"), call) == NEVER
    approvals.remember(tool(press), YES)
    assert approvals.decide(tool(press), call) == NEVER
    approvals.forget()
    assert approvals.decide(tool(press), call) == Allow()


def test_whoever_is_asked_is_told_that_a_tool_changed():
    told = []

    def approve(requests: list[Any]) -> list[Allow]:
        told.extend(request.changed for request in requests)
        return [YES]

    approvals = Approvals([Rule("ask")], approve)
    for made in (tool(press), tool(press), tool(press_harder, name="press")):
        follow(Agent(scripted(block("press()"), "x"), [made], approvals=approvals))
    assert told == [False, True]


# -- changed arguments ------------------------------------------------------------------------------------


def edited(arguments: dict[str, Any], *rules: Rule) -> tuple[list[Any], str]:
    approvals = Approvals(rules, lambda requests: [Edit(arguments)])
    agent = Agent(scripted(block("write_file(path='a')"), "x"), [write_file], approvals=approvals)
    events, done = follow(agent)
    return events, lines(done.messages)[2]


def test_rules_that_deny_count_for_changed_arguments():
    rule = Rule("deny", "write_file", ETC, reason="not there")
    events, line = edited({"path": "/etc/x"}, rule)
    note = EDITED.format('path="/etc/x"')
    assert line == f"tool: ! {note}Denied: not there. The call was not run."
    given = [(event.call.arguments, event.decision) for event in events if isinstance(event, ApprovalGiven)]
    assert given == [({"path": "a"}, Edit({"path": "/etc/x"})), ({"path": "/etc/x"}, Deny("not there"))]
    assert len([event for event in events if isinstance(event, ToolEnded)]) == 1


def test_whoever_changed_arguments_is_not_asked_again():
    _, line = edited({"path": "/etc/x"}, Rule("ask", "write_file", ETC))
    assert line.endswith("wrote /etc/x")


def test_changed_arguments_that_do_not_fit():
    _, line = edited({"way": "b"})
    assert line.startswith("tool: ! " + EDITED.format('way="b"'))
    assert "there is no such parameter" in line


# -- what is no approval ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (True, "Approvals"),
        ("ask", "Approvals"),
        (Allow(), "Approvals"),
        (Allow, "Approvals"),
        (Rule("allow"), "list of Rule"),
        ([Allow()], "no Rule"),
        ([Rule("allow"), "deny"], "no Rule"),
    ],
)
def test_what_is_no_approvals(wrong, says):
    with pytest.raises(UsageError, match=says):
        as_approvals(wrong)
    with pytest.raises(UsageError, match=says):
        Agent(scripted("x"), [kill], approvals=wrong)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"rules": lambda requests: []}, "list of Rule"),
        ({"rules": Rule("allow")}, "list of Rule"),
        ({"rules": "allow"}, "list of Rule"),
        ({"approver": [Rule("allow")]}, "must be a function"),
        ({"approver": Allow}, "must be a function"),
    ],
)
def test_approvals_of_the_wrong_things(wrong, says):
    with pytest.raises(UsageError, match=says):
        Approvals(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"action": "forbid"},
        {"action": "deny", "tool": ""},
        {"action": "deny", "tool": 3},
        {"action": "deny", "arguments": ["path"]},
        {"action": "deny", "arguments": {"pid": 1}},
        {"action": "deny", "arguments": {1: "1"}},
    ],
)
def test_rules_that_mean_nothing(wrong):
    with pytest.raises(UsageError, match="a rule's"):
        Rule(**wrong)


def test_a_list_of_rules_is_enough():
    agent = Agent(
        scripted(block("write_file(path='notes/a')", "write_file(path='b')"), "x"),
        [write_file], approvals=[Rule("allow", "write_file", NOTES)],
    )  # fmt: skip
    _, done = follow(agent)
    assert [result.is_error for result in done.messages[2].results] == [False, True]


def test_an_approver_gets_a_list():
    def approve(requests: list[Any]) -> list[Allow]:
        requests.reverse()
        return [Allow() for _ in requests]

    _, done = follow(Agent(scripted(block("write_file(path='a')"), "x"), [write_file], approvals=approve))
    assert lines(done.messages)[2] == "tool: wrote a"


def test_rules_that_fit_nothing_are_found():
    known = [
        *(Rule("deny", name) for name in ("write_file", "write-file", "*", "later_*", "srv_write_it")),
        Rule("deny", "kill", {"PID": "1"}),
        Rule("deny", "srv*", {"file_path": "*"}),
        Rule("deny", "*", {"pid": "1"}),
    ]
    unknown = [
        *(Rule("deny", name) for name in ("writefile", "write")),
        Rule("deny", "kill", {"process": "1"}),
        Rule("deny", "*", {"process": "1"}),
    ]
    assert Approvals([*known, *unknown]).unknown_rules(TOOLS) == unknown

    def bind(arguments: Any) -> Any:
        return lambda context: None

    def takes(normalise: Any, **schema: Any) -> ToolSet:
        parameters = {"type": "object", **schema}
        return ToolSet(
            [Tool(name="all", description="", parameters=parameters, bind=bind, normalise=normalise)]
        )

    of_x = Approvals([Rule("deny", "all", {"x": "1"})])
    assert not of_x.unknown_rules(takes(None))
    assert not of_x.unknown_rules(takes(dict, additionalProperties=True))
    assert of_x.unknown_rules(takes(dict)) == list(of_x.rules)
