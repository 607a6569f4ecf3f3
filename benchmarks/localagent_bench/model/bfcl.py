"""BFCL's tasks as a model is given them, judged by BFCL's own checker.

The checker is imported as it is. Of all that it imports, only the table of the leaderboard's models has a
stand-in, since that loads the clients of every provider. The checker asks it one thing: whether a model is
given names with `_` in place of dots. Ours are, as OpenAI's.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from localagent.messages import AssistantMessage
from localagent_bench.bfcl import ASKED, JUDGED, NoData, openai_name, read_tasks
from localagent_bench.model.tasks import Judge, Task

_TYPES = {
    **dict.fromkeys(("float", "double", "number"), "number"),
    **dict.fromkeys(("byte", "short", "long", "Bigint", "integer"), "integer"),
    **dict.fromkeys(("list", "tuple", "ArrayList", "Array", "Queue", "Stack", "array"), "array"),
    **dict.fromkeys(("dict", "HashMap", "Hashtable", "object"), "object"),
    **dict.fromkeys(("bool", "boolean"), "boolean"),
}
_LANGUAGES = {"simple_java": "Java", "simple_javascript": "JavaScript"}
_SYNTAX = {"Java": "Java 8 SDK", "JavaScript": "JavaScript", "Python": "Python 3"}


def bfcl_tasks(package: Path) -> list[Task]:
    """All single-turn tasks. Raises NoData."""
    return read_tasks(package, (*JUDGED, *ASKED), partial(_task, load_checker(package)))


Check = Callable[[Sequence[Mapping[str, Any]], list[dict[str, Any]], Any, str], dict[str, Any]]
"""Functions, calls, the accepted answers and the category to the checker's verdict."""


def load_checker(package: Path) -> Check:
    """BFCL's `ast_checker`. Raises NoData."""
    with _importing(package.parent):
        try:
            checker = importlib.import_module("bfcl_eval.eval_checker.ast_eval.ast_checker")
            language = importlib.import_module("bfcl_eval.constants.enums").Language
        except Exception as error:  # whatever another release of it may need
            raise NoData(f"the checker in {package} cannot be imported: {error!r:.200}") from error

    def check(
        functions: Sequence[Mapping[str, Any]], calls: list[dict[str, Any]], answers: Any, category: str
    ) -> dict[str, Any]:
        spoken = language[_LANGUAGES.get(category, "Python").upper()]
        verdict: dict[str, Any] = checker.ast_checker(
            list(functions), calls, answers, spoken, category, "localagent"
        )
        return verdict

    return check


@contextmanager
def _importing(folder: Path) -> Iterator[None]:
    """Modules of the package are found, and the table of the models is one of ours, for the time being."""
    table = "bfcl_eval.constants.model_config"
    stand_in = ModuleType(table)
    stand_in.MODEL_CONFIG_MAPPING = {"localagent": SimpleNamespace(underscore_to_dot=True)}  # type: ignore[attr-defined]
    before = sys.modules.get(table)
    sys.modules[table] = stand_in
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        del sys.modules[table]
        if before is not None:
            sys.modules[table] = before


def _task(check: Check, category: str, entry: dict[str, Any], answers: Any) -> Task:
    functions = entry["function"]
    judge = _asked(category) if answers is None else _compared(category, functions, answers, check)
    return Task(
        entry["id"],
        category,
        tuple(entry["question"][0]),
        tuple(_tool(function, _LANGUAGES.get(category, "Python")) for function in functions),
        judge,
        calls="irrelevance" not in category,
    )


def _compared(category: str, functions: list[dict[str, Any]], answers: Any, check: Check) -> Judge:
    def judge(message: AssistantMessage) -> str:
        if message.malformed_tool_calls:
            return "malformed"
        # The checker takes no kind of list or dict but the bare one, and a message's are frozen.
        calls = [{call.name: deepcopy(call.arguments)} for call in message.tool_calls]
        if not calls:
            return "no call"
        try:
            verdict = check(functions, calls, answers, category)
        except Exception as error:  # it was written for other outputs, and some of ours it cannot take
            return f"checker: {type(error).__name__}"
        return "" if verdict["valid"] else str(verdict["error_type"])

    return judge


def _asked(category: str) -> Judge:
    def judge(message: AssistantMessage) -> str:
        if "irrelevance" in category:
            return "a call" if message.tool_calls else ""
        return "" if message.tool_calls else "no call"

    return judge


def _tool(function: dict[str, Any], language: str) -> dict[str, Any]:
    """The function as BFCL offers it to models that take OpenAI's tools."""
    parameters = function["parameters"]
    properties = parameters.get("properties") or {}
    if language == "Python":
        properties = {key: _schema(each) for key, each in properties.items()}
    else:
        properties = {key: _spelled(each, language) for key, each in properties.items()}
    hint = f" Note that the provided function is in {_SYNTAX[language]} syntax."
    return {
        "type": "function",
        "function": {
            "name": openai_name(function["name"]),
            "description": function.get("description", "") + hint,
            "parameters": {**parameters, "type": "object", "properties": properties},
        },
    }


def _schema(schema: Any) -> Any:
    """A schema with JSON Schema's types: one that is not known, or not said, is a string, as BFCL has it."""
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type", "")
    found = {**schema, "type": _TYPES.get(kind, "string") if isinstance(kind, str) else kind}
    if isinstance(schema.get("properties"), dict):
        found["properties"] = {key: _schema(each) for key, each in schema["properties"].items()}
    if isinstance(schema.get("items"), dict):
        found["items"] = _schema(schema["items"])
    return found


def _spelled(schema: dict[str, Any], language: str) -> dict[str, Any]:
    """An argument of a language whose values JSON has no words for: it is written as a string."""
    kind, told = schema["type"], schema.get("description", "")
    if kind == "any":
        told += f" This parameter can be of any type of {language} object in string representation."
    else:
        told += f" This is {language} {kind} type parameter in string representation."
    if kind in ("ArrayList", "Array", "array"):
        inner = schema.get("items", {}).get("type", "any")
        told += f" The list elements are of type {inner}; they are not in string representation."
    if language == "JavaScript" and kind == "dict" and "properties" in schema:
        told += (
            " The dictionary entries have the following schema; they are not in string representation. "
            + json.dumps(schema["properties"])
        )
    dropped = ("items", "properties", "description", "type")
    return {"type": "string", "description": told, **{k: v for k, v in schema.items() if k not in dropped}}
