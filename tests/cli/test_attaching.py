"""Files in a message: text goes below the prompt with its tokens told first, what a model cannot read is refused."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from localagent.chat_model import UNKNOWN_CONTEXT
from localagent.cli import attaching
from localagent.cli.attaching import Attachment, files_of, mentioned, read_files, tell, typed_of, with_files
from localagent.errors import ContextOverflow, UsageError
from localagent.messages import ImagePart, TextPart, UserMessage

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 8
NANO = ("--model", "lfm2-nano", "--threads", "1")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("milk\nbread")
    (tmp_path / "a plan.md").write_text("go\n")
    (tmp_path / "odd,").write_text("odd\n")
    (tmp_path / "photo.png").write_bytes(PNG)
    (tmp_path / "sub").mkdir()
    return tmp_path


class Model:
    """Counts words."""

    name = "tiny"
    vision = False
    host = SimpleNamespace(context=50)

    def count_tokens(self, message, limit=None):
        count = len(message.text.split())
        if limit is not None and count > limit:
            raise ContextOverflow(count, limit)
        return count


@pytest.mark.parametrize(
    ("text", "files", "others"),
    [
        ("What is in @notes.txt?", ["notes.txt"], []),
        ("@notes.txt, @notes.txt and (@notes.txt)", ["notes.txt"], []),
        ('Follow @"a plan.md".', ["a plan.md"], []),
        ("Is @odd, a file?", ["odd,"], []),
        ("Ask ann@example.org and @bob about @sub", [], []),
        ("Read @nots.txt and @sub/x", [], ["nots.txt", "sub/x"]),
        ("a @ b @\n@", [], []),
        ("@" + "x" * 5000 + ".txt", [], ["x" * 5000 + ".txt"]),
        ("@~nobody-here/x", [], ["~nobody-here/x"]),
    ],
)
def test_files_that_a_message_names(folder, text, files, others):
    assert mentioned(text) == (files, others)


def test_a_file_stands_below_the_text_in_a_fence_that_it_cannot_end(folder):
    (folder / "code.md").write_text("```\nls\n```\n````\n")
    message = with_files("Compare.", read_files(["notes.txt", "code.md"]))
    assert message.text == (
        "Compare.\n\nnotes.txt:\n```\nmilk\nbread\n```\n\n\ncode.md:\n`````\n```\nls\n```\n````\n`````\n"
    )
    assert typed_of(message) == "Compare."
    assert [file.name for file in files_of(message)] == ["notes.txt", "code.md"]
    again = UserMessage.model_validate_json(message.model_dump_json())
    assert (typed_of(again), files_of(again)) == (typed_of(message), files_of(message))


def test_a_message_without_files_is_as_it_always_was():
    message = with_files("Hi.", [])
    assert message == UserMessage.text("Hi.")
    assert (typed_of(message), files_of(message)) == ("Hi.", [])


def test_the_tokens_of_each_file_are_told(folder):
    assert tell(read_files(["notes.txt", "a plan.md"]), "Hi there.", Model()) == [
        "(notes.txt: 5 tokens of 50)",
        "(a plan.md: 5 tokens of 50)",
    ]
    (folder / "long.txt").write_text("word " * 60)
    with pytest.raises(ContextOverflow):
        tell(read_files(["long.txt"]), "", Model())


def test_images_go_to_models_that_see_them(folder):
    [photo] = read_files(["photo.png"])
    assert photo.part == ImagePart(data=PNG, media_type="image/png")
    with pytest.raises(UsageError, match=r"photo.png is an image, and tiny sees none"):
        tell([photo], "", Model())
    seeing = Model()
    seeing.vision = True
    assert tell([photo], "", seeing) == ["(photo.png: an image of 16 bytes)"]


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("a.bin", b"a\0b", "a.bin is binary: NUL at character 1"),
        ("a.pdf", b"%PDF-1.7 \xff", "a.pdf is no UTF-8 text: byte 0xff at offset 9"),
        ("sub", None, "sub is a folder"),
        ("none", None, "none cannot be read: No such file"),
    ],
)
def test_what_a_model_cannot_read_is_refused(folder, name, data, says):
    if data is not None:
        (folder / name).write_bytes(data)
    with pytest.raises(UsageError, match=says):
        read_files([name])


def test_a_file_that_is_too_long_for_any_model(folder, monkeypatch):
    monkeypatch.setattr("localagent.cli.attaching.LIMIT", 5)
    with pytest.raises(UsageError, match=r"notes.txt is longer than 5 bytes"):
        read_files(["notes.txt"])


def test_limits_and_what_is_unknown(folder, monkeypatch):
    assert attaching.LIMIT == 64 << 20
    monkeypatch.setattr(attaching, "LIMIT", 10)
    assert read_files(["notes.txt"])[0].part.text == "\n\nnotes.txt:\n```\nmilk\nbread\n```\n"
    (folder / "marked.txt").write_bytes(b"\xef\xbb\xbfa\n")
    assert read_files(["marked.txt"])[0].part.text == "\n\nmarked.txt:\n```\na\n```\n"
    model = Model()
    model.host = SimpleNamespace(context=UNKNOWN_CONTEXT)
    assert tell(read_files(["notes.txt"]), "", model) == ["(notes.txt: 5 tokens)"]
    model.vision = True
    assert tell([Attachment("x", ImagePart.from_url("https://a.b/c.png"))], "", model) == [
        "(x: an image of 0 bytes)"
    ]
    for message in (UserMessage.text("Hi."), UserMessage(content=(TextPart(text="Hi."),), payload=[1])):
        assert (files_of(message), typed_of(message)) == ([], "Hi.")
    with pytest.raises(UsageError) as error:
        read_files(["a\0b"])
    assert str(error.value).endswith(" cannot be read: embedded null byte")


def test_run_takes_files(localagent, folder):
    done = localagent("run", *NANO, "What is this?", "-f", str(folder / "notes.txt"), "--json")
    assert done.returncode == 0
    assert f"({folder / 'notes.txt'}: ".encode() in done.stderr
    alone = localagent("run", *NANO, "-f", str(folder / "notes.txt"), "--json")
    said = [json.loads(each.stdout)["usage"]["input"] for each in (done, alone)]
    assert said[0] > said[1] > 10
    localagent.refuse("run", *NANO, "Hi.", "-f", str(folder / "sub"), code=2, says="is a folder")
    localagent.refuse(
        "run", *NANO, "Hi.", "-f", str(folder / "photo.png"), code=2, says="lfm2-nano sees none"
    )


def test_a_chat_takes_files_by_name_and_at_its_start(localagent, folder):
    notes, plan = folder / "notes.txt", folder / "a plan.md"
    lines = (
        f'What is in @"{plan}"?\n/history\nAnd @{folder}/non.txt?\n/edit What is this?\n/history\n'
        f"See @{folder / 'photo.png'}\n"
    )
    done = localagent("chat", *NANO, "--no-save", "-f", str(notes), stdin=lines.encode())
    said = done.stderr.decode()
    assert done.returncode == 0
    assert f"(with your first message: {notes})" in said
    assert f"({notes}: " in said
    assert f"({plan}: " in said
    assert f'user: What is in @"{plan}"? [{notes}] [{plan}]' in said, "the history shows names, not files"
    assert f"(@{folder}/non.txt is no file here: sent as you wrote it)" in said
    assert said.count("user: What is this?\n") == 1
    assert f"localagent: {folder / 'photo.png'} is an image, and lfm2-nano sees none" in said


def test_what_is_edited_keeps_the_files_of_the_start_and_reads_those_it_names_anew(localagent, folder):
    notes, plan = folder / "notes.txt", folder / "a plan.md"
    lines = f'Do @"{plan}".\n/edit Skip it.\n/history\n/edit Do @"{plan}" now.\n/history\n'
    done = localagent("chat", *NANO, "--no-save", "-f", str(notes), stdin=lines.encode())
    said = [line for line in done.stderr.decode().splitlines() if line.startswith("user: ")]
    assert said == [f"user: Skip it. [{notes}]", f'user: Do @"{plan}" now. [{notes}] [{plan}]']
