"""BFCL's tasks are asked as BFCL asks them, and judged by its own checker."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from localagent.errors import UsageError
from localagent.messages import AssistantMessage, MalformedToolCallPart, TextPart, ToolCallPart
from localagent_bench.bfcl import JUDGED, NoData, find_package
from localagent_bench.model.bfcl import bfcl_tasks
from localagent_bench.model.tasks import sample

FUNCTION = {
    "name": "math.add",
    "description": "Adds.",
    "parameters": {
        "type": "dict",
        "properties": {
            "a": {"type": "float", "description": "One."},
            "b": {"type": "tuple", "items": {"type": "any"}},
        },
        "required": ["a"],
    },
}
JAVA = {
    "name": "f",
    "description": "Does.",
    "parameters": {
        "type": "dict",
        "properties": {"list": {"type": "ArrayList", "items": {"type": "String"}, "description": "All."}},
        "required": [],
    },
}
CHECKER = """
from bfcl_eval.constants.model_config import MODEL_CONFIG_MAPPING

def ast_checker(functions, calls, answers, language, category, model):
    assert MODEL_CONFIG_MAPPING[model].underscore_to_dot
    assert {type(given) for call in calls for given in call.values()} == {dict}
    if calls == [{"break": {}}]:
        raise KeyError("break")
    wanted = [{name.replace(".", "_"): given} for each in answers for name, given in each.items()]
    told = f"{language.name} {category} {functions[0]['name']}"
    return {"valid": calls == wanted, "error_type": f"not_the_same: {told}"}
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that is laid out as bfcl-eval, with one task in three of its files."""
    for name in [name for name in sys.modules if name.split(".")[0] == "bfcl_eval"]:
        monkeypatch.delitem(sys.modules, name)
    root = tmp_path / "unpacked" / "bfcl_eval"
    for folder in ("", "eval_checker", "eval_checker/ast_eval", "constants"):
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / "__init__.py").touch()
    (root / "eval_checker" / "ast_eval" / "ast_checker.py").write_text(CHECKER)
    languages = "import enum\nLanguage = enum.Enum('Language', 'PYTHON JAVA JAVASCRIPT')\n"
    (root / "constants" / "enums.py").write_text(languages)
    (root / "constants" / "model_config.py").write_text("raise ImportError('the clients of every provider')")
    (root / "data" / "possible_answer").mkdir(parents=True)
    for category in (*JUDGED, "irrelevance", "live_irrelevance", "live_relevance"):
        write(root, category, [])
    write(root, "simple_python", [FUNCTION], [{"math.add": {"a": 1.0}}])
    write(root, "simple_java", [JAVA], [{"f": {}}])
    write(root, "irrelevance", [FUNCTION])
    write(root, "live_relevance", [FUNCTION])
    monkeypatch.setenv("LOCALAGENT_BFCL", str(tmp_path))
    yield root
    for name in [name for name in sys.modules if name.split(".")[0] == "bfcl_eval"]:
        del sys.modules[name]


def write(root: Any, category: str, functions: list[Any], truth: Any = None) -> None:
    asked = {
        "id": f"{category}_0",
        "question": [[{"role": "user", "content": "Add!"}]],
        "function": functions,
    }
    (root / "data" / f"BFCL_v4_{category}.json").write_text(json.dumps(asked) + "\n" if functions else "")
    truths = json.dumps({"id": f"{category}_0", "ground_truth": truth}) + "\n" if functions else ""
    if category in JUDGED:
        (root / "data" / "possible_answer" / f"BFCL_v4_{category}.json").write_text(truths)


def says(*calls: tuple[str, dict[str, Any]], malformed: bool = False) -> AssistantMessage:
    parts: list[Any] = [ToolCallPart(id="", name=name, arguments=arguments) for name, arguments in calls]
    if malformed:
        parts.append(MalformedToolCallPart(id="", raw="[f(", reason="missing_end"))
    return AssistantMessage(content=tuple(parts) or (TextPart(text="I cannot."),))


def test_functions_become_tools_and_answers_are_judged_by_the_checker(package):
    python, java, irrelevant, relevant = bfcl_tasks(find_package())
    function = python.tools[0]["function"]
    assert function["name"] == "math_add"
    assert function["description"] == "Adds. Note that the provided function is in Python 3 syntax."
    types = {name: schema["type"] for name, schema in function["parameters"]["properties"].items()}
    assert (function["parameters"]["type"], types) == ("object", {"a": "number", "b": "array"})
    assert python.judge(says(("math_add", {"a": 1.0}))) == ""
    assert python.judge(says(("math_add", {"a": 2.0}))) == "not_the_same: PYTHON simple_python math.add"
    assert java.judge(says(("f", {"a": 1}))) == "not_the_same: JAVA simple_java f"
    assert python.judge(says()) == "no call"
    assert python.judge(says(("math_add", {"a": 1.0}), malformed=True)) == "malformed"
    assert python.judge(says(("break", {}))) == "checker: KeyError"
    spelled = java.tools[0]["function"]["parameters"]["properties"]["list"]
    assert (spelled["type"], "items" in spelled) == ("string", False)
    assert "elements are of type String" in spelled["description"]
    assert (irrelevant.judge(says()), irrelevant.judge(says(("f", {})))) == ("", "a call")
    assert (relevant.judge(says()), relevant.judge(says(("f", {})))) == ("no call", "")
    assert [task.calls for task in (python, java, irrelevant, relevant)] == [True, True, False, True]
    assert "bfcl_eval.constants.model_config" not in sys.modules, "the stand-in stays behind"


IN_WORDS = {
    "list": {"type": "ArrayList", "items": {"type": "String"}, "description": "All.", "default": 1},
    "bare": {"type": "Array"},
    "low": {"type": "array", "items": {}},
    "any": {"type": "any", "description": "Z."},
    "map": {"type": "dict", "properties": {"k": {"type": "String"}}},
    "empty": {"type": "dict"},
    "n": {"type": "integer", "enum": [1], "description": ""},
}


@pytest.mark.parametrize(
    ("category", "language", "syntax", "entries"),
    [
        ("simple_java", "Java", "Java 8 SDK", ""),
        (
            "simple_javascript",
            "JavaScript",
            "JavaScript",
            " The dictionary entries have the following schema; they are not in string representation. "
            '{"k": {"type": "String"}}',
        ),
    ],
)
def test_values_that_json_has_no_words_for_are_strings_that_say_so(
    package, category, language, syntax, entries
):
    function = {"name": "a.b.f", "parameters": {"type": "dict", "properties": IN_WORDS, "required": ["n"]}}
    write(package, category, [function], [{"a.b.f": {}}])
    (task,) = [task for task in bfcl_tasks(package) if task.kind == category]
    of_items = " The list elements are of type {}; they are not in string representation."

    def told(before, kind, after=""):
        return f"{before} This is {language} {kind} type parameter in string representation.{after}"

    assert task.tools == (
        {
            "type": "function",
            "function": {
                "name": "a_b_f",
                "description": f" Note that the provided function is in {syntax} syntax.",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "list": {
                            "type": "string",
                            "description": told("All.", "ArrayList", of_items.format("String")),
                            "default": 1,
                        },
                        "bare": {"type": "string", "description": told("", "Array", of_items.format("any"))},
                        "low": {"type": "string", "description": told("", "array", of_items.format("any"))},
                        "any": {
                            "type": "string",
                            "description": f"Z. This parameter can be of any type of {language} object in string "
                            "representation.",
                        },
                        "map": {"type": "string", "description": told("", "dict", entries)},
                        "empty": {"type": "string", "description": told("", "dict")},
                        "n": {"type": "string", "description": told("", "integer"), "enum": [1]},
                    },
                    "required": ["n"],
                },
            },
        },
    )
    assert task.judge(says(("f", {}))) == f"not_the_same: {language.upper()} {category} a.b.f"


def test_types_of_python_become_those_of_schemas(package):
    properties = {
        "map": {"type": "dict", "properties": {"x": {"type": "tuple", "items": {"type": "float"}}}},
        "odd": {"type": "Unknown"},
        "none": {"description": "Any."},
        "both": {"type": ["string", "null"]},
        "all": {"type": "array", "items": True},
        "number": {"type": "dict", "properties": 7},
        "true": True,
    }
    functions = [
        {"name": "f", "parameters": {"type": "dict", "properties": properties}},
        {"name": "g", "description": "Goes.", "parameters": {"properties": None}},
    ]
    write(package, "simple_python", functions, [{"f": {}}])
    f, g = [tool["function"] for tool in bfcl_tasks(package)[0].tools]
    assert f["parameters"] == {
        "type": "object",
        "properties": {
            "map": {"type": "object", "properties": {"x": {"type": "array", "items": {"type": "number"}}}},
            "odd": {"type": "string"},
            "none": {"type": "string", "description": "Any."},
            "both": {"type": ["string", "null"]},
            "all": {"type": "array", "items": True},
            "number": {"type": "object", "properties": 7},
            "true": True,
        },
    }
    assert g == {
        "name": "g",
        "description": "Goes. Note that the provided function is in Python 3 syntax.",
        "parameters": {"type": "object", "properties": {}},
    }


def test_a_task_is_what_its_line_says(package):
    file = package / "data" / "BFCL_v4_simple_python.json"
    file.write_text(f"\n{file.read_text()}\n  \n")
    tasks = bfcl_tasks(package)
    assert [(task.id, task.kind, task.messages) for task in tasks] == [
        (f"{category}_0", category, ({"role": "user", "content": "Add!"},))
        for category in ("simple_python", "simple_java", "irrelevance", "live_relevance")
    ]
    write(package, "live_irrelevance", [FUNCTION])
    (other,) = [task for task in bfcl_tasks(package) if task.kind == "live_irrelevance"]
    assert (other.calls, other.judge(says()), other.judge(says(("f", {})))) == (False, "", "a call")


def test_modules_of_the_checker_are_looked_for_in_the_package_alone_and_only_then(package, monkeypatch):
    table = "bfcl_eval.constants.model_config"
    before, paths = object(), [*sys.path]
    monkeypatch.setitem(sys.modules, table, before)
    bfcl_tasks(package)
    assert sys.modules[table] is before
    assert sys.path == paths
    (package / "data" / "BFCL_v4_multiple.json").write_text("{")
    with pytest.raises(NoData):
        bfcl_tasks(package)
    assert (sys.modules[table], sys.path) == (before, paths)


def test_the_package_is_where_it_is_named_or_installed(package, monkeypatch):
    monkeypatch.setenv("HOME", str(package.parents[1]))
    monkeypatch.setenv("LOCALAGENT_BFCL", " ~/unpacked ")
    assert find_package() == package
    monkeypatch.setenv("LOCALAGENT_BFCL", " ")
    asked = []
    spec = SimpleNamespace(submodule_search_locations=["/one", "/two"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: asked.append(name) or spec)
    assert find_package() == Path("/one")
    assert asked == ["bfcl_eval"]
    spec.submodule_search_locations = None
    with pytest.raises(NoData, match="is not installed"):
        find_package()


def test_data_that_are_not_there_or_broken_are_named_in_a_line(package, monkeypatch, tmp_path):
    file = package / "data" / "BFCL_v4_multiple.json"
    for content in ("{", "[]", '{"id": 1}', "\x00"):
        file.write_text(content)
        with pytest.raises(NoData, match="cannot be read"):
            bfcl_tasks(package)
    file.unlink()
    with pytest.raises(NoData, match="cannot be read"):
        bfcl_tasks(package)
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("LOCALAGENT_BFCL", str(tmp_path / "empty"))
    with pytest.raises(NoData, match="unpack bfcl-eval there"):
        find_package()
    monkeypatch.delenv("LOCALAGENT_BFCL")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(NoData, match="not installed"):
        find_package()


def test_files_without_tasks_and_a_checker_that_cannot_be_imported_are_named(package):
    for path in (package / "data").rglob("*.json"):
        path.write_text("")
    with pytest.raises(NoData, match="no tasks"):
        bfcl_tasks(package)
    (package / "constants" / "enums.py").write_text("import nothing_of_that_name")
    sys.modules.pop("bfcl_eval.constants.enums")
    with pytest.raises(NoData, match="checker"):
        bfcl_tasks(package)


def test_a_sample_is_the_same_each_time_and_in_order(package):
    tasks = bfcl_tasks(package)
    some = sample(tasks, 2, seed=3)
    assert some == sample(tasks, 2, seed=3)
    assert [tasks.index(task) for task in some] == sorted(tasks.index(task) for task in some)
    assert len({tuple(task.id for task in sample(tasks, 2, seed)) for seed in range(20)}) > 1
    assert len(sample(tasks, 1, seed=1)) == 1
    assert sample(tasks, None, seed=1) == sample(tasks, 99, seed=1) == tasks
    with pytest.raises(UsageError, match="1 or more"):
        sample(tasks, 0, seed=1)


def test_the_checker_of_the_real_package_takes_its_own_answers():
    try:
        package = find_package()
    except NoData as missing:
        pytest.skip(str(missing))
    judged, refused = 0, []
    truths = {}
    for category in JUDGED:
        text = (package / "data" / "possible_answer" / f"BFCL_v4_{category}.json").read_text()
        truths |= {row["id"]: row["ground_truth"] for row in map(json.loads, text.splitlines())}
    for task in bfcl_tasks(package):
        if task.id in truths and task.kind not in ("simple_java", "simple_javascript"):
            calls = [
                (name.replace(".", "_"), plain(given))
                for each in truths[task.id]
                for name, given in each.items()
            ]
            judged += 1
            if fault := task.judge(says(*calls)):
                refused.append((task.id, fault))
    assert judged > 2_000
    assert len(refused) < 20, "a few of its own answers lack what its checker wants"


def plain(value: Any) -> Any:
    """The first of the accepted values; an empty string means that there may be none."""
    if isinstance(value, list):
        return [plain(each) for each in value]
    if not isinstance(value, dict):
        return value
    first = {
        key: next((v for v in each if v != ""), None) if isinstance(each, list) else each
        for key, each in value.items()
    }
    return {key: plain(each) for key, each in first.items() if each is not None}
