"""Energy is read where the system tells it, and elsewhere it says why not."""

from __future__ import annotations

import sys

import pytest

from localagent.bench.model.energy import EnergyMeter, NotTold


def package(root, number, microjoules, most=1_000):
    folder = root / f"intel-rapl:{number}"
    folder.mkdir()
    (folder / "name").write_text(f"package-{number}\n")
    (folder / "energy_uj").write_text(f"{microjoules}\n")
    (folder / "max_energy_range_uj").write_text(f"{most}\n")
    return folder


def test_the_packages_add_up_and_a_counter_may_begin_again(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    one, two = package(tmp_path, 0, 100), package(tmp_path, 1, 900)
    other = package(tmp_path, 2, 5)
    (other / "name").write_text("psys\n")
    meter = EnergyMeter(tmp_path)
    before = meter.read()
    (one / "energy_uj").write_text("350")
    (two / "energy_uj").write_text("50")
    assert meter.since(before) == pytest.approx((250 + 150) / 1e6)


def test_a_machine_that_tells_nothing_is_named_in_a_line(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(NotTold, match="no counters"):
        EnergyMeter(tmp_path)
    (package(tmp_path, 0, 1) / "energy_uj").write_text("broken")
    with pytest.raises(NotTold, match="cannot be read"):
        EnergyMeter(tmp_path)
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(NotTold, match="powermetrics"):
        EnergyMeter(tmp_path)
