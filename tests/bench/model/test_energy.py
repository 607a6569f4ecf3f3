"""Energy is read where the system tells it, and elsewhere it says why not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from localagent_bench.model.energy import EnergyMeter, NotTold


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
    assert why(tmp_path) == f"not told here: {tmp_path} has no counters of energy (RAPL)"
    one = package(tmp_path, 0, 1)
    (one / "energy_uj").write_text("broken")
    assert why(tmp_path).startswith(f"not told here: {tmp_path} cannot be read (invalid literal")
    (one / "name").unlink()
    assert why(tmp_path).startswith(f"not told here: {tmp_path} cannot be read ([Errno 2] No such file")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert why(tmp_path) == "not told here: macOS tells it to root alone (powermetrics)"


def test_counters_that_root_alone_may_read_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    package(tmp_path, 0, 1)
    read = Path.read_text

    def refused(path, *given):
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(path))
        return read(path, *given)

    monkeypatch.setattr(Path, "read_text", refused)
    assert why(tmp_path) == f"not told here: {tmp_path}/intel-rapl:0/energy_uj may be read by root alone"


def why(root):
    with pytest.raises(NotTold) as told:
        EnergyMeter(root)
    return str(told.value)
