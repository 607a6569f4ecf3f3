"""`make mutants`: which faults it makes, that a sample can be repeated, and what it says of tests."""

from __future__ import annotations

import ast
import random
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from tests import faults, mutants
from tests.conftest import LONG
from tests.faults import Mutant, sample, sources
from tests.mutants import JUDGED, ROOT

MUCH = 8_000
"""Bytes of a source file of which not all faults are made, unless there is much time."""
CODE = '''
"""Words."""
from typing import TYPE_CHECKING, Literal, cast

if TYPE_CHECKING:
    import json
MODES = Literal[1, 2]
LIMIT: int = 3

@decorated(depth=4)
class A:
    flag: bool = True

    @property
    def first(self, size: Literal[5] = 6) -> "list[int] | None":
        """Words."""
        try:
            return cast(list[int], self.items[7:size])
        except KeyError as error:
            if self.flag and not error.args:
                raise
            log(error)
        assert_never(error)
'''


def made(code: str) -> list[Mutant]:
    return list(faults.mutants("parsers/a.py", code, random.Random(1)))


def test_what_is_changed_and_what_is_left_alone():
    found = {tuple(each.diff.replace("+", "-").split("\n-")[-1:]) for each in made(CODE)}
    after = {line.strip() for (line,) in found}
    assert after >= {
        "LIMIT: int = 4",
        "flag: bool = False",
        'def first(self, size: Literal[5] = 7) -> "list[int] | None":',
        "return cast(list[int], self.items[8:size])",
        "return None",
        "if self.flag or not error.args:",
        "if not (self.flag and not error.args):",
        "if self.flag and error.args:",
        "log(None)",
        "pass",
    }
    assert {line.split("#")[0] for line in after if "Literal" in line} == {
        "MODES = Literal[2, 2]",
        "MODES = Literal[1, 3]",
        'def first(self, size: Literal[5] = 7) -> "list[int] | None":',
    }
    assert not [line for line in after if "decorated" in line or "Words" in line or "TYPE_CHECKING" in line]
    for each in made(CODE):
        assert ast.dump(ast.parse(each.after)) != ast.dump(ast.parse(CODE))


def test_what_would_change_nothing_is_left_out():
    code = """
def f(kind):
    found = False
    pairs = zip(kind, kind, strict=True)
    match kind:
        case int():
            found = True
        case _:
            pass
    if pairs:
        return False
    return found
"""
    found = {each.diff for each in made(code)}
    assert found >= {
        "-    found = False\n+    found = True",
        "-        return False\n+        return True",
        "-    return found\n+    return None",
        "-        case int():\n-            found = True",
    }
    assert not [
        diff for diff in found if "kind, kind)" in diff or "strict=False" in diff or "True or" in diff
    ]
    assert not [diff for diff in found if "False\n+    found = None" in diff or "case _" in diff]
    assert "-        return False\n+        return None" not in found
    ending = code.replace("            pass", "            return 1")
    assert "-        case _:\n-            return 1" in {each.diff for each in made(ending)}


def test_the_line_is_the_line_of_the_change():
    for each in made(CODE):
        if "log(" in each.diff:
            assert each.before.splitlines()[each.line - 1].strip() == "log(error)"


def test_a_judgement_is_of_one_fault_in_one_function_as_it_stands():
    keys = {each.diff: each.key for each in made(CODE)}
    assert len(set(keys.values())) == len(keys)
    moved = {each.diff: each.key for each in made("\n\n" + CODE)}
    assert moved == keys
    changed = {each.diff: each.key for each in made(CODE.replace("log(error)", "log(error, 1)"))}
    inside = [diff for diff in keys if diff in changed and ("return" in diff or "raise" in diff)]
    assert inside
    assert all(keys[diff] != changed[diff] for diff in inside)
    assert keys["-LIMIT: int = 3\n+LIMIT: int = 4"] == changed["-LIMIT: int = 3\n+LIMIT: int = 4"]


def test_every_source_has_tests():
    for path in sources(ROOT):
        tests = mutants.tests_for(ROOT, path)
        assert tests, f"{path}: no tests of its name; say in ELSEWHERE where they are"
        for each in tests:
            assert (ROOT / each).is_file() or list((ROOT / each).rglob("test_*.py")), f"{path}: {each}"


def test_the_nearest_tests_come_first(tmp_path):
    for name, text in {
        "test_reading.py": "",
        "test_wire.py": "from localagent.wire.openai.reading import read",
        "test_openai.py": "from localagent.wire import x\nfrom localagent.wire.openai import from_wire",
        "test_laws.py": "import localagent.wire",
        "test_far.py": "import localagent",
    }.items():
        (tmp_path / name).write_text(text)
    names = ["test_reading.py", "test_wire.py", "test_openai.py", "test_laws.py", "test_far.py"]
    found = [mutants.distance(tmp_path, "localagent/wire/openai/reading.py", name) for name in names]
    assert found == [0, 1, 2, 3, 4]


def test_what_is_named_is_there():
    paths = sources(ROOT)
    for beginning in mutants.ELSEWHERE:
        assert any(path.startswith(beginning) for path in paths), beginning


def test_large_files_are_drawn_more_often(tree):
    (tree / "localagent/large.py").write_text("\n".join(f"A{n} = {n}" for n in range(300)))
    (tree / "parsers/small.py").write_text("\n".join(f"A{n} = {n}" for n in range(30)))
    drawn = Counter(each.path for each in sample(tree, 1, 110))
    assert 90 < drawn["localagent/large.py"] < 110, drawn
    assert drawn["parsers/small.py"], drawn


def test_a_sample_is_the_seeds():
    first = sample(ROOT, 7, 8, "localagent/session/")
    assert [each.key for each in first] == [each.key for each in sample(ROOT, 7, 8, "localagent/session/")]
    assert {each.key for each in first} != {each.key for each in sample(ROOT, 8, 8, "localagent/session/")}
    assert len({(each.path, each.after) for each in first}) == 8
    assert all(each.path.startswith("localagent/session/") for each in first)
    assert all(each.before == (ROOT / each.path).read_text() for each in first)


def test_judgements_are_of_faults_that_can_be_made():
    reasons = tomllib.loads(JUDGED.read_text())["equivalent"]
    judged: dict[str, set[str]] = {}
    for key, reason in reasons.items():
        path, _, why = reason.partition(": ")
        assert len(why) > 10, f"{key}: {reason}"
        judged.setdefault(path, set()).add(key)
    for path, keys in judged.items():
        if not LONG and (ROOT / path).stat().st_size > MUCH:
            continue
        for each in faults.mutants(path, (ROOT / path).read_text(), random.Random()):
            keys.discard(each.key)
            if not keys:  # the others are not made: a large file has thousands
                break
        assert not keys, path


ADDING = """def add(a, b):
    return a + b


def drain(numbers):
    while numbers:
        numbers.pop()
"""
TESTS = """from parsers.adding import add, drain


def test_add():
    assert add(1, 2) == 3
"""


@pytest.fixture
def tree(tmp_path, monkeypatch) -> Path:
    root = tmp_path / "tree"
    for path, text in {
        "parsers/adding.py": ADDING,
        "parsers/__init__.py": "",
        "localagent/__init__.py": "",
        "tests/parsers/test_adding.py": TESTS,
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    judged = tmp_path / "judged.toml"
    judged.write_text("[equivalent]\n")
    monkeypatch.setattr(mutants, "ROOT", root)
    monkeypatch.setattr(mutants, "JUDGED", judged)
    monkeypatch.setattr(mutants, "PATIENCE", 2)
    return root


def state(root: Path) -> dict[Path, tuple[bytes, int]]:
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in root.rglob("*") if path.is_file()}


def test_faults_that_are_noticed_and_faults_that_are_not(tree, capsys):
    before = state(tree)
    assert mutants.main(["--seed", "3", "--count", "100"]) == 1
    said = capsys.readouterr().out
    assert state(tree) == before
    negated, dropped = re.findall(r"parsers/adding.py:(\d+) survived \((\w{12})\)\n(-.*\n\+.*)\n", said)
    assert negated[::2] == ("6", "-    while numbers:\n+    while not (numbers):")
    assert dropped[::2] == ("7", "-        numbers.pop()\n+        pass")
    assert "2 of 4 noticed, 50.0%" in said

    mutants.JUDGED.write_text(f'[equivalent]\n{negated[1]} = "parsers/adding.py: said to be of no effect"\n')
    (tree / "tests/parsers/test_adding.py").write_text(f"{TESTS}\n\ndef test_drain():\n    drain([1])\n")
    assert mutants.main(["--seed", "4", "--count", "100"]) == 0
    said = capsys.readouterr().out
    assert f"parsers/adding.py:7 timed out ({dropped[1]})" in said
    assert re.search(r"^all +2 +1 +0 +1$", said, re.MULTILINE), said
    assert "3 of 3 noticed, 100.0%" in said


def test_a_run_goes_on_where_another_one_was_ended(tree, tmp_path, capsys, monkeypatch):
    arguments = ["--seed", "3", "--count", "100", "--notes", str(tmp_path / "notes")]
    mutants.main(arguments)
    first = capsys.readouterr().out
    kept = (tmp_path / "notes").read_text().splitlines(keepends=True)
    assert len(kept) == 5
    (tmp_path / "notes").write_text("".join(kept[:3]))  # the folder, and two of four faults
    ran = []
    run = mutants.Copy.run
    monkeypatch.setattr(mutants.Copy, "run", lambda copy, *given: ran.append(given) or run(copy, *given))
    mutants.main(arguments)
    assert len(ran) == 2
    counted = re.compile("^[^━]*$", re.MULTILINE)  # without the bars
    assert counted.findall(capsys.readouterr().out) == counted.findall(first)


def test_tests_that_fail_on_their_own_say_nothing(tree):
    (tree / "tests/parsers/test_adding.py").write_text(TESTS.replace("== 3", "== 4"))
    with pytest.raises(SystemExit, match=r"without a fault: tests/parsers/test_adding.py::test_add$"):
        mutants.main(["--count", "1"])


def test_what_fails_once_and_passes_alone_does_not_end_the_run(tree, tmp_path, capsys):
    """Beside others a test may run out of time; so what fails is tried again when nothing else runs."""
    flaky = f"""

def test_of_time():
    tries = __import__("pathlib").Path({str(tmp_path / "tries")!r})
    with tries.open("a") as file:
        file.write(".")
    assert tries.stat().st_size > 1
"""
    (tree / "tests/parsers/test_adding.py").write_text(TESTS + flaky)
    notes = tmp_path / "notes"
    assert mutants.main(["--seed", "3", "--count", "100", "--notes", str(notes)]) == 1
    said = capsys.readouterr().out
    assert "tests/parsers/test_adding.py::test_of_time failed without a fault, and passed alone" in said
    assert "2 of 4 noticed, 50.0%" in said
    assert len(notes.read_text().splitlines()) == 5


def test_a_folder_whose_tests_fail_is_timed_again_the_next_time(tree, tmp_path):
    notes = tmp_path / "notes"
    (tree / "tests/parsers/test_adding.py").write_text(TESTS.replace("== 3", "== 4"))
    for _ in range(2):
        with pytest.raises(SystemExit, match="without a fault"):
            mutants.main(["--count", "1", "--notes", str(notes)])
    (tree / "tests/parsers/test_adding.py").write_text("import nothing_of_that_name")
    with pytest.raises(SystemExit, match=r"without a fault: .*test_adding"):
        mutants.main(["--count", "1", "--notes", str(notes)])
