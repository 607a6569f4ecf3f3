"""`localagent` on a real pseudo-terminal: what a person sees of runs and chats."""

from __future__ import annotations

import pytest

from tests.agent.replaying import block

STORY = " ".join(f"word{number}" for number in range(400))


def test_n1_an_answer_is_seen_while_it_is_written(start):
    terminal = start("run", "Hi.", outputs=["# Title\n\nSome **bold** text. " + STORY], pace=0.02, size=4)
    terminal.wait("^Some bold text. word0 word1")
    assert "word399" not in terminal.text
    assert terminal.screen[0] == "Title"
    terminal.interrupt()
    terminal.end()


def test_n1_a_sign_of_life_before_the_first_token(start):
    terminal = start("run", "Hi.", outputs=["Hello."], pace=1.5, size=9)
    terminal.wait("waiting for the model · [01] s")
    assert terminal.end() == 0
    assert terminal.lines == ["Hello."]


def test_n1_in_a_pipe_the_answer_is_what_the_model_wrote(start, home, tmp_path):
    import subprocess

    from tests.cli.terminal.screen import program

    line, settings = program(home, ["run", "Hi."], ["# Title\n\n**bold**\n"])
    done = subprocess.run(line, env=settings, capture_output=True, stdin=subprocess.DEVNULL, check=True)
    assert (done.stdout, done.stderr) == (b"# Title\n\n**bold**\n", b"")


def test_n2_thinking_is_one_line_that_counts(start):
    terminal = start("chat", "--no-save", outputs=["<think>" + STORY + "</think>Yes."], pace=0.02, size=4)
    terminal.wait("^>$")
    terminal.type("Hi.\r")
    terminal.wait(r"thinking · 1 s · \d+ tokens · Ctrl-T shows it")
    assert "word" not in terminal.text


def test_n5_the_status_line_follows_an_answer(start):
    terminal = start("chat", "--no-save", outputs=["Hello."])
    terminal.wait("^>$")
    terminal.type("Hi.\r")
    terminal.wait(r"^8/32k · [\d,]+ tok/s · 0 % cached$")


@pytest.mark.parametrize("term", ["dumb", "unknown"])
def test_w6_a_dumb_terminal_gets_no_control_sequence(start, term):
    calls = block('write_file(path="a.txt", content="x")')
    terminal = start(
        "chat", "--no-save", "--tools", "write", "--ask", "*", outputs=["<think>Hm</think>**a**" + calls, "Done."],
        TERM=term,
    )  # fmt: skip
    terminal.wait("^>$")
    terminal.type("Hi.\r")
    terminal.wait(r"\[s\]top")
    terminal.type("n")
    terminal.wait("Done.")
    terminal.type("/exit\r")
    assert terminal.end() == 0
    assert "\x1b" not in terminal.written
    assert "**a**" in terminal.text


@pytest.mark.parametrize("command", ["run", "chat"])
def test_w6_no_color_leaves_no_colour(start, command):
    outputs = ["<think>Hm</think>**a** `b`\n\n```python\nx = 1\n```\n" + block("read_file('a')"), "Done."]
    words = ("run", "Hi.") if command == "run" else ("chat", "--no-save")
    terminal = start(*words, "--tools", "files", outputs=outputs, NO_COLOR="1")
    if command == "chat":
        terminal.wait("^>$")
        terminal.type("Hi.\r")
    terminal.wait("Done.")
    terminal.settle()
    used = {(cell.fg, cell.bg) for row in terminal.cells for cell in row}
    assert used == {("default", "default")}


def test_w9_ctrl_c_leaves_whole_lines(start):
    terminal = start("run", "Hi.", outputs=[STORY], pace=0.02, size=4)
    terminal.wait("word5")
    terminal.interrupt()
    assert terminal.end() == 130
    *written, last = terminal.lines
    assert last == "localagent: interrupted"
    assert written[0].startswith("word0 word1")
    assert all(row.strip() for row in written)


def test_w9_ctrl_c_before_the_first_token_leaves_nothing_else(start):
    terminal = start("run", "Hi.", outputs=["Hello."], pace=30.0)
    terminal.wait("waiting for the model")
    terminal.interrupt()
    assert terminal.end() == 130
    assert [line.replace("^C", "") for line in terminal.lines if line != "^C"] == ["localagent: interrupted"]


@pytest.mark.parametrize("command", [("models", "list"), ("sessions", "list")])
def test_w15_nothing_is_cut_at_40_columns(start, command):
    asked = "Tell me about the long and winding road to your door."
    terminal = start("run", "Hi.") if command[0] == "models" else start("chat", outputs=["Yes."])
    if command[0] == "sessions":
        terminal.wait("^>$")
        terminal.type(asked + "\r")
        terminal.wait("cached")
        terminal.type("/exit\r")
    terminal.end()
    narrow = start(*command, columns=40)
    narrow.end()
    assert "…" not in narrow.text
    name = asked if command[0] == "sessions" else "lfm2.5-1.2b-instruct"
    assert name.replace(" ", "") in narrow.text.replace(" ", "").replace("\n", "")


def test_n7_single_keys_and_a_diff(start, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    (root / "plan.txt").write_text("red\nold\n")
    writes = block('write_file(path="plan.txt", content="red\\nnew\\n")')
    options = ("chat", "--no-save", "--tools", "write", "--root", str(root))
    terminal = start(*options, outputs=[writes, "Done."])
    terminal.wait("^>$")
    terminal.type("Go.\r")
    terminal.wait(r"^\+new$[^$]*\[s\]top")
    assert "-old" in terminal.lines
    terminal.type("a")
    terminal.wait(r"too\?")
    terminal.type("y")
    terminal.wait("Done.")
    assert (root / "plan.txt").read_text() == "red\nnew\n"
    terminal.type("\x04")
    terminal.end()
    (root / "plan.txt").write_text("red\nold\n")
    later = start(*options, outputs=[writes, "Done."])
    later.wait("^>$")
    later.type("Go.\r")
    later.wait("Done.")
    assert "is allowed in" in later.text
    assert (root / "plan.txt").read_text() == "red\nnew\n"
    strict = start(*options, "--ask", "write_file", outputs=[writes, "Done."])
    strict.wait("^>$")
    strict.type("Go.\r")
    strict.wait(r"\[s\]top")
