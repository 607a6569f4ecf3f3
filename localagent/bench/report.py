"""One HTML file made of results, which needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from localagent.bench.results import Run

_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>localagent bench</title>
{% for run in runs %}<h1>{{ run.bench }}</h1><p>{{ run.started }}, {{ run.machine.processor }}</p>
{% for name, rows in run.rows.items() %}{% set table = run.tables[name] %}
<h2>{{ table.title }}</h2><p>{{ table.told }}</p>
<table><tr>{% for column in table.columns %}<th>{{ column.title }}</th>{% endfor %}</tr>
{% for row in rows %}<tr>{% for column in table.columns %}<td>{{ row[column.key] }}</td>{% endfor %}</tr>
{% endfor %}</table>{% endfor %}{% endfor %}</html>
"""


def render(runs: Sequence[Run]) -> str:
    """The page as text."""
    from jinja2 import Environment

    return Environment(autoescape=True).from_string(_PAGE).render(runs=runs)


def write_report(runs: Sequence[Run], path: Path) -> None:
    """Write the page."""
    path.write_text(render(runs), encoding="utf-8")
