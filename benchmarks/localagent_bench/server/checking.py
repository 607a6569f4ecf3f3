"""All checks on all servers, one after the other, as rows of two tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from localagent.wording import one_line
from localagent_bench.results import Chart, Column, Results, Table
from localagent_bench.server import of_answers, of_calls, of_http, of_streams
from localagent_bench.server.hearing import Caller, ServerGone
from localagent_bench.server.rules import OUTCOMES, Check, Fails, Probe, Verdict
from localagent_bench.server.target import MeasuredServer

CHECKS = (*of_http.CHECKS, *of_answers.CHECKS, *of_streams.CHECKS, *of_calls.CHECKS)

RULES = Table(
    "server.rules",
    "What is on the wire",
    (
        Column("rule", "rule"),
        Column("server", "server"),
        Column("outcome", "outcome"),
        Column("seen", "what was seen"),
        Column("sent", "asked with"),
    ),
    "Chat completions over a real socket, judged by the bytes that come. Passes: as the rule says. Fails: "
    "against it. Not offered: the server refuses what was asked for, in the form in which errors are told. "
    "Not seen: there was no occasion, for example because the model made no call.",
    within="rule",
)
OUTCOME = Table(
    "server.outcomes",
    "Rules of the wire",
    (
        Column("server", "server"),
        Column("passes", "passes", better="more"),
        Column("fails", "fails", better="less"),
        Column("not_offered", "not offered"),
        Column("not_seen", "not seen"),
    ),
    "How many rules each server keeps.",
    (Chart("stack", "server", ("passes", "fails", "not_offered", "not_seen"), f"{len(CHECKS)} rules"),),
)


def check_servers(
    results: Results, targets: Sequence[MeasuredServer], limit: float, tell: Callable[[str], object]
) -> list[MeasuredServer]:
    """Run every check on every server; the servers that still answer afterwards.

    `limit`: seconds that an answer may take. `tell`: gets a line about how far it is.
    """
    there = []
    for target in targets:
        tell(f"{target.name}: {len(CHECKS)} rules")
        found, gone = _check(target, limit)
        outcomes = [outcome for _, outcome, _ in found]
        counts = {outcome.replace(" ", "_"): outcomes.count(outcome) for outcome in OUTCOMES}
        results.add(OUTCOME, server=target.name, **counts)
        for check, outcome, seen in found:
            told = {"rule": check.rule, "sent": check.sent, "seen": one_line(seen, 200)}
            results.add(RULES, server=target.name, outcome=outcome, **told)
        if gone:
            results.skip(f"{target.name}, {len(CHECKS) - len(found)} of {len(CHECKS)} rules", gone)
        else:
            there.append(target)
    return there


def _check(target: MeasuredServer, limit: float) -> tuple[list[tuple[Check, str, str]], str]:
    """Each check with its outcome and what was seen, and why the server was given up; "" if it was not."""
    probe = Probe(target, Caller(target.server, limit))
    found: list[tuple[Check, str, str]] = []
    for check in CHECKS:
        try:
            outcome, seen = "passes", check.run(probe)
        except Verdict as verdict:
            outcome, seen = verdict.outcome, str(verdict)
        except (
            AttributeError,
            KeyError,
            IndexError,
            TypeError,
            ValueError,
            ArithmeticError,
            RecursionError,
        ) as error:
            # JSON of a shape that nobody would think of.
            outcome, seen = Fails.outcome, f"an answer of another shape ({type(error).__name__}: {error})"
        except ServerGone as error:
            return found, one_line(str(error), 300)
        found.append((check, outcome, seen))
    return found, ""
