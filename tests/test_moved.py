"""A module is found under the name that it had before, with a warning that says the new one."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest

from localagent.moved import MOVED, install


@pytest.mark.parametrize("old", MOVED)
def test_the_old_name_gives_what_the_new_one_has(old, monkeypatch):
    monkeypatch.delitem(sys.modules, old, raising=False)
    with pytest.warns(DeprecationWarning, match=f"^{old} is now {MOVED[old]}$"):
        under_old = import_module(old)
    new = import_module(MOVED[old])
    names = [name for name in vars(new) if not name.startswith("_")]
    assert names
    assert all(getattr(under_old, name) is getattr(new, name) for name in names)
    assert not hasattr(under_old, "__file__"), "it is no module of its own, and is not to be taken for one"
    with pytest.raises(ImportError, match="nothing_of_that_name"):
        exec(f"from {old} import nothing_of_that_name")


def test_the_warning_is_about_the_line_that_imports(monkeypatch):
    monkeypatch.delitem(sys.modules, "localagent.jsonl", raising=False)
    with pytest.warns(DeprecationWarning) as warned:
        exec(compile("import localagent.jsonl", "program.py", "exec"))
    assert [each.filename for each in warned] == ["program.py"]


def test_the_names_are_made_importable_once():
    before = list(sys.meta_path)
    install()
    assert sys.meta_path == before


def test_a_name_that_never_was_is_not_found():
    with pytest.raises(ModuleNotFoundError):
        import_module("localagent.never_was")
