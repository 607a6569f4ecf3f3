"""Whole screens at 40, 80 and 120 columns, as they are kept in screens/; `make screens` writes them anew."""

from __future__ import annotations

import pytest

from tests.cli.terminal.scenes import SCENES, SCREENS, WIDTHS, played, steady


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("name", SCENES)
def test_a_screen_is_as_it_is_kept(tmp_path, name, columns):
    with played(name, columns, tmp_path) as terminal:
        shown = steady(terminal.lines)
    assert shown == (SCREENS / f"{name}-{columns}.txt").read_text()
    assert max(map(len, shown.splitlines())) <= columns


def test_every_screen_that_is_kept_is_a_scene():
    kept = {path.name for path in SCREENS.iterdir()}
    texts = {f"{name}-{columns}.txt" for name in SCENES for columns in WIDTHS}
    assert kept == texts | {f"{name}.svg" for name in SCENES}


@pytest.mark.parametrize("name", SCENES)
def test_a_picture_needs_nothing_from_elsewhere(name):
    style = (SCREENS / f"{name}.svg").read_text().split("</style>")[0]
    assert "url(" not in style
    assert "@font-face" not in style
