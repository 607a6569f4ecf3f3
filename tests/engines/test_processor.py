"""The processor's name and instructions, read from what Linux and macOS tell."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

from localagent.engines.processor import Processor, parse_cpuinfo, read_processor

SAPPHIRE_RAPIDS = """\
processor\t: 0
model name\t: Intel(R) Xeon(R)   Platinum 8481C
flags\t\t: fpu vme smep sse4_2 avx avx2 avx512f avx512_vnni fma f16c amx_tile amx_int8 avx_vnni

processor\t: 1
model name\t: another
flags\t\t: fpu
"""
GRAVITON = """\
processor\t: 0
Features\t: fp asimd evtstrm aes asimdhp sve i8mm bf16 svebf16
CPU implementer\t: 0x41
CPU part\t: 0xd40
"""


def test_an_x86_processor_is_read_from_cpuinfo():
    found = parse_cpuinfo(SAPPHIRE_RAPIDS, "x86_64")
    assert found.name == "Intel(R) Xeon(R) Platinum 8481C"
    assert {"amx_tile", "amx_int8", "avx512f", "avx2", "sse4_2"} <= set(found.features)
    assert not {"fpu", "vme", "smep"} & set(found.features)
    assert str(found) == "Intel(R) Xeon(R) Platinum 8481C (amx avx2 avx512 avx_vnni fma)"


def test_arm_has_numbers_for_a_name():
    found = parse_cpuinfo(GRAVITON, "aarch64")
    assert str(found) == "cpu implementer 0x41 cpu part 0xd40 (asimd bf16 i8mm sve)"


def test_a_file_that_tells_nothing():
    found = parse_cpuinfo("", "riscv64")
    assert (found.features, str(found)) == ((), "unknown processor (riscv64)")


def test_the_key_is_that_of_the_instructions_and_the_name():
    first = parse_cpuinfo(SAPPHIRE_RAPIDS, "x86_64")
    assert first.key == parse_cpuinfo(SAPPHIRE_RAPIDS, "x86_64").key
    keys = {
        first.key,
        parse_cpuinfo(SAPPHIRE_RAPIDS.replace(" amx_int8", ""), "x86_64").key,
        parse_cpuinfo(SAPPHIRE_RAPIDS.replace("8481C", "8488C"), "x86_64").key,
        parse_cpuinfo(SAPPHIRE_RAPIDS, "aarch64").key,
    }
    assert len(keys) == 4


@pytest.mark.parametrize(("told", "name"), [("arm", "arm"), ("", "unknown processor")])
def test_a_system_without_cpuinfo_is_asked_itself(monkeypatch, told, name):
    def refuse(*_: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(sys, "platform", "freebsd")
    monkeypatch.setattr(Path, "read_text", refuse)
    monkeypatch.setattr(platform, "processor", lambda: told)
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert read_processor.__wrapped__() == Processor("arm64", name, ())


def test_the_processor_of_this_machine_is_read():
    found = read_processor()
    assert found.name
    assert found.architecture
