"""The judgements of other servers' tests are well formed; the tests themselves are run by hand."""

from __future__ import annotations

from fnmatch import fnmatchcase

from tests.server.foreign.__main__ import judge, judgements


def test_each_judgement_has_a_reason_and_is_reached():
    known = list(judgements().items())
    assert known
    for place, (pattern, reason) in enumerate(known):
        name, separator, test = pattern.partition("::")
        assert name.startswith("test_") and name.endswith(".py") and separator and test, pattern
        assert len(reason) > 20, reason
        assert not any(fnmatchcase(pattern, earlier) for earlier, _ in known[:place]), (
            f"{pattern} is never reached"
        )


def test_what_nobody_judged_is_told_and_counted(capsys):
    (pattern, reason), *_ = judgements().items()
    outcomes = {"test_new.py::test_news": "assert 1 == 2", pattern: "404", "test_x.py::test_good": "passed"}
    assert judge(outcomes, whole=False) == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed == [
        "1 passed, 2 failed, 0 skipped",
        f"     1 not ours: {reason}",
        "  test_new.py::test_news: assert 1 == 2",
    ]
    assert judge(outcomes, whole=True) > 1, "the other judgements fit nothing any more"
