"""`run` and who answers in a chat, in this process with a model that plays: what is asked, kept, printed and closed."""

from __future__ import annotations

import dataclasses
import json
import sys
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from localagent.agent import Agent, Rule, RunFailed
from localagent.chat_model import UNKNOWN_CONTEXT
from localagent.cli import run
from localagent.cli.options import AnswerOptions, ModelOptions, RunOptions, ToolOptions
from localagent.cli.talk import speaker as module
from localagent.cli.talk.speaker import Speaker
from localagent.errors import EngineFailed, UsageError
from localagent.messages import Usage
from localagent.session import SessionStore
from localagent.tools import tool
from parsers import Text
from tests.agent.replaying import block, scripted


@tool(side_effects=True)
def send(text: str) -> str:
    """Send a text."""
    return text


@pytest.fixture
def ask(monkeypatch, tmp_path, capsys):
    """Runs a prompt; returns what is printed, with what the model was loaded and asked with."""
    monkeypatch.setenv("LOCALAGENT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(
        run, "whole_prompt", lambda words, required: " ".join(words) if words or required else ""
    )
    seen = SimpleNamespace(loaded=[], asked=[], closed=[])

    def agent_run(self, message, **options):
        seen.asked.append(
            (message, {name: each for name, each in options.items() if name not in ("history", "cancel")})
        )
        yield from real(self, message, **options)

    real = Agent.run
    monkeypatch.setattr(Agent, "run", agent_run)

    def ask(*words, output="One.", options=None, tools=None, answer=None, files=(), **how):
        model = scripted(*([output] if isinstance(output, str) else output))
        close = model.close
        model.close = lambda: (seen.closed.append(True), close())

        def open_model(options, *, snapshots):
            seen.loaded.append((options, snapshots))
            return model

        monkeypatch.setattr(run, "open_model", open_model)
        run.run_once(
            words,
            options or ModelOptions(),
            tools or ToolOptions(),
            answer or AnswerOptions(),
            RunOptions(**how),
            files,
        )
        printed = capsys.readouterr()
        return SimpleNamespace(out=printed.out, err=printed.err, **vars(seen))

    ask.seen = seen
    return ask


def sessions() -> list[str]:
    return [info.title for info in SessionStore().list()]


def test_the_answer_is_printed_and_nothing_is_kept_in_a_pipe(ask):
    said = ask("Hi", "there.", options=ModelOptions(model="m", seed=3, system="Be curt."))
    assert (said.out, said.err) == ("One.\n", "")
    [(message, options)] = said.asked
    assert (message.text, options) == ("Hi there.", {"seed": 3})
    assert said.loaded == [(ModelOptions(model="m", seed=3, system="Be curt."), False)]
    assert said.closed == [True]
    assert sessions() == []


def test_json_figures_and_events(ask):
    said = ask("Hi.", as_json=True)
    assert json.loads(said.out)["content"] == [{"kind": "text", "text": "One."}]
    said = ask("Hi.", stats=True)
    assert said.out == "One.\n"
    assert said.err.startswith("prompt tokens: ")
    for more in ({}, {"as_json": True}):  # the message is in the last event
        lines = [json.loads(line) for line in ask("Hi.", events=True, **more).out.splitlines()]
        assert [lines[0]["event"], lines[-1]["event"]] == ["turn_started", "run_done"]
        assert "".join(line["text"] for line in lines if line["event"] == "text") == "One."


@pytest.mark.parametrize(
    ("how", "kept"),
    [({}, True), ({"as_json": True}, False), ({"events": True}, False), ({"no_save": True}, False)],
)
def test_what_a_person_asks_is_kept_and_gone_on_with(ask, monkeypatch, how, kept):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    said = ask("Hi.", options=ModelOptions(model="m", seed=3), **how)
    assert said.err == "", "where it is kept is said in a chat alone"
    assert sessions() == (["Hi."] if kept else [])
    if not kept:
        return
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    said = ask("And?", output="Two.", go_on=True)
    assert sessions() == ["Hi."]
    assert said.loaded[-1] == (ModelOptions(model="m"), True)
    assert said.asked[-1][1] == {"seed": 3}, "as it was asked before"
    texts = [message.text for message in SessionStore().open("last").context() if message.role != "custom"]
    assert texts == ["Hi.", "One.", "And?", "Two."]


def test_nothing_can_be_gone_on_with_that_is_not_saved(ask):
    with pytest.raises(UsageError) as error:
        ask("Hi.", go_on=True, no_save=True)
    assert str(error.value) == "--continue goes on with a saved conversation, and --no-save saves none"
    assert ask.seen.loaded == []


def test_files_go_with_the_prompt_or_are_all_of_it(ask, tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("milk")
    said = ask("Buy:", files=[file])
    assert said.err.startswith(f"({file}: ")
    assert said.asked[-1][0].text.startswith(f"Buy:\n\n{file}:\n```\nmilk\n```")
    assert ask(files=[file]).asked[-1][0].text.startswith(f"\n\n{file}:")


def test_a_role_and_an_answer_of_a_form(ask, tmp_path):
    role, schema = tmp_path / "role.md", tmp_path / "form.json"
    role.write_text("+++\nmax_tokens = 7\n+++\nBe kind.")
    schema.write_text('{"type": "object"}')
    answer = AnswerOptions(tool_choice="none", parallel=False, schema=schema, strict=True)
    form = {"type": "json_schema", "json_schema": {"name": "form", "schema": {"type": "object"}}}
    assert answer.of_turns() == {
        "tool_choice": "none", "parallel_tool_calls": False, "response_format": form, "strict": True,
    }  # fmt: skip
    said = ask("Hi.", options=ModelOptions(role=str(role)), answer=AnswerOptions(tool_choice="none"))
    assert said.asked[-1][1] == {"max_tokens": 7, "tool_choice": "none"}
    assert said.loaded[-1][0].system == "Be kind."


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("[1]", "a JSON Schema is an object, not [1]"), ("{", "not JSON: Expecting property name"),
        (None, "No such file or directory"), ("[" * 100_000, "not JSON: "),
    ],
)  # fmt: skip
def test_a_form_that_is_none_is_told_before_anything_is_loaded(ask, tmp_path, answer, says):
    schema = tmp_path / "form.json"
    if answer is not None:
        schema.write_text(answer)
    with pytest.raises(UsageError) as error:
        ask("Hi.", answer=AnswerOptions(schema=schema))
    assert str(error.value).startswith(f"--schema {schema}: {says}")
    assert ask.seen.loaded == []


@pytest.mark.parametrize(
    ("schema", "limit", "warned"), [(True, 1, True), (True, 99, False), (False, 1, False)]
)
def test_an_answer_that_is_cut_off_does_not_fit_its_form(ask, monkeypatch, tmp_path, schema, limit, warned):
    monkeypatch.setattr(run.AnswerOptions, "of_turns", lambda _: {})  # what plays here is bound by no form
    form = tmp_path / "form.json" if schema else None
    said = ask(
        "Hi.",
        output="A long answer.",
        options=ModelOptions(max_tokens=limit),
        answer=AnswerOptions(schema=form),
    )
    warning = "warning: the answer is cut off before it fits the schema: raise --max-tokens\n"
    assert said.err == (warning if warned else "")


def test_a_call_that_nobody_can_approve_is_denied(ask, monkeypatch):
    monkeypatch.setattr(run, "open_tools", lambda options, stack, say: [send])
    calls = [block("send(text='a')"), "Done."]
    said = ask("Hi.", output=calls)
    assert "nobody is here to approve it: --allow send lets it run" in said.err
    said = ask("Hi.", output=calls, tools=ToolOptions(allow=["send"]))
    assert "send: a\n" in said.err
    assert said.out == "Done.\n"


def test_stopping_at_a_question_is_ctrl_c(ask, monkeypatch):
    from localagent.cli.approving import STOPPED

    class Approver:
        def __init__(self, say, stop, permissions):
            self.stop = stop

        def __call__(self, requests):
            self.stop().set()
            return [STOPPED for _ in requests]

    monkeypatch.setattr(run, "open_tools", lambda options, stack, say: [send])
    monkeypatch.setattr(run, "TerminalApprover", Approver)
    with pytest.raises(KeyboardInterrupt):
        ask("Hi.", output=[block("send(text='a')"), "Done."])
    assert ask.seen.closed == [True]


def test_a_run_that_fails_ends_its_line_and_is_raised(ask, monkeypatch, capsys):
    def fail(self, message, **_):
        yield Text("half", 0, 4)
        yield RunFailed(EngineFailed("it died"), (), Usage(), 1)

    monkeypatch.setattr(Agent, "run", fail)
    for events in (False, True):
        with pytest.raises(EngineFailed, match="it died"):
            ask("Hi.", events=events)
        out = capsys.readouterr().out
        assert out == "half\n" if not events else json.loads(out.splitlines()[-1])["event"] == "run_failed"


# Who answers in a chat


@pytest.fixture
def speaker(monkeypatch, tmp_path):
    """Opens a speaker whose models are only noted; `order` is what was done."""
    monkeypatch.setenv("LOCALAGENT_HOME", str(tmp_path))
    order = []

    def open_model(options, *, snapshots):
        order.append(("load", options.model, snapshots))
        model = scripted("Hi.")
        model.name = options.model or "default"
        model.close = lambda: order.append(("close", model.name))
        return model

    def open_tools(options, stack, say):
        order.append(("tools", options.tools))
        stack.callback(order.append, "tools closed")
        return [send]

    monkeypatch.setattr(module, "open_model", open_model)
    monkeypatch.setattr(module, "open_tools", open_tools)

    def make(options=None, tools=None, kept=None, *, save=True):
        stack = ExitStack()
        made = Speaker.open(options or ModelOptions(), tools or ToolOptions(), kept, stack, print, save=save)
        return SimpleNamespace(speaker=made, stack=stack, order=order)

    return make


@pytest.mark.parametrize("save", [True, False])
def test_tools_are_opened_before_the_model_and_both_are_closed(speaker, save):
    kept = {"loading": {"model": "m"}, "tools": {"tools": ["time"]}, "turn": {"seed": 3}}
    found = speaker(ModelOptions(temperature=0.5), kept=kept, save=save)
    assert found.order == [("tools", ["time"]), ("load", "m", save)]
    assert found.speaker.turn == {"seed": 3, "temperature": 0.5}
    settings = found.speaker.settings
    assert settings["tools"].pop("root")
    assert settings == {**kept, "turn": {"seed": 3, "temperature": 0.5}}
    found.stack.close()
    assert found.order[2:] == [("close", "m"), "tools closed"]


def test_a_speaker_is_described_by_its_model_and_context(speaker):
    found = speaker(ModelOptions(model="m\nx")).speaker
    found.model.host = SimpleNamespace(context=8192)
    assert found.described == "m x, 8,192 tokens of context"
    found.model.host = SimpleNamespace(context=UNKNOWN_CONTEXT)
    assert found.described == "m x"


def test_agents_share_what_was_answered_with_always(speaker):
    found = speaker(tools=ToolOptions(deny=["send"]))

    def approver(_):
        return []

    first = found.speaker.agent(approver)
    found.speaker.set("seed", 3)
    second = found.speaker.agent(approver)
    assert first.approvals is second.approvals
    assert found.speaker._approvals.rules == (Rule("deny", "send"),)
    assert [each.name for each in first.toolset()] == ["send"]
    assert (first.sampling.get("seed"), second.sampling.get("seed")) == (None, 3)
    assert first.model is found.speaker.model


def test_another_model_is_loaded_when_the_earlier_one_is_closed(speaker):
    found = speaker(ModelOptions(model="m", dialect="lfm2", tokenizer="t", seed=3))
    del found.order[:]
    found.speaker.use("lfm2-na")
    assert found.order == [("close", "m"), ("load", "lfm2-nano", True)]
    assert found.speaker.options == ModelOptions(model="lfm2-nano", seed=3), (
        "the dialect was the earlier one's"
    )
    there = speaker(ModelOptions(model="m", url="http://a"))
    there.speaker.use("its own name")
    assert there.order[-1] == ("load", "its own name", True)


def test_the_earlier_model_is_loaded_again_where_another_cannot_be(speaker):
    found = speaker(ModelOptions(model="m", dialect="lfm2"))
    loads = found.speaker._load

    def load(options):
        loads(options)
        if options.model != "m":
            raise KeyboardInterrupt
        return dataclasses.replace(options)

    del found.order[:]
    found.speaker._load = load
    with pytest.raises(KeyboardInterrupt):
        found.speaker.use("lfm2-nano")
    assert found.order == [("close", "m"), ("load", "lfm2-nano", True), ("load", "m", True)]
    assert found.speaker.model == found.speaker.options == ModelOptions(model="m", dialect="lfm2")


def test_an_option_that_the_model_refuses_changes_nothing(speaker):
    found = speaker(ModelOptions(seed=3)).speaker
    found.set("top_k", 5)
    assert found.turn == {"seed": 3, "top_k": 5}
    found.set("seed", None)
    assert found.turn == {"top_k": 5}
    with pytest.raises(UsageError):
        found.set("top_p", 7.0)
    assert found.turn == {"top_k": 5}
