"""The processor's name and instructions, read from what Linux and macOS tell."""

from __future__ import annotations

import ctypes
import platform
import sys
from pathlib import Path
from types import SimpleNamespace

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


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("MODEL NAME: A:  B\nflags: v\n", Processor("rv", "A: B", ("v",))),
        ("model name\nmodel name:\nFeatures: fp sve2 sve2\n", Processor("rv", "unknown processor", ("sve2",))),
        ("CPU part: 7\nflags: \nFeatures: sme rvv rv x86 bmi2x\n", Processor("rv", "cpu part 7", ("rv", "rvv", "sme"))),
        ("flags: avx bmi2 f16c sse4_1 sse4_2 ssse3\n", Processor("rv", "unknown processor",
            ("avx", "bmi2", "f16c", "sse4_1", "sse4_2", "ssse3"))),
    ],
)  # fmt: skip
def test_what_is_read_from_cpuinfo(text, found):
    assert parse_cpuinfo(text, "rv") == found
    if "avx" in text:
        assert str(found) == "unknown processor (rv)", "what every processor with these has is not told"


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
    assert {len(bytes.fromhex(key)) for key in keys} == {8}


@pytest.mark.parametrize(("told", "name"), [("arm", "arm"), ("", "unknown processor")])
def test_a_system_without_cpuinfo_is_asked_itself(monkeypatch, told, name):
    def refuse(*_: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(sys, "platform", "freebsd")
    monkeypatch.setattr(Path, "read_text", refuse)
    monkeypatch.setattr(platform, "processor", lambda: told)
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert read_processor.__wrapped__() == Processor("arm64", name, ())


@pytest.mark.parametrize(
    ("value", "code", "name"),
    [
        (b"Apple M4 Max", 0, "Apple M4 Max"),
        (b"Apple \xff", 0, "Apple \ufffd"),
        (b"", 0, "arm"),
        (b"x", -1, "arm"),
    ],
)
def test_macos_is_asked_by_its_own_call(monkeypatch, value, code, name):
    """It has no /proc; where it does not tell either, Python's name has to do."""
    asked = []

    def sysctlbyname(key: bytes, buffer, size, new: None, length) -> int:
        asked.append((key, size._obj.value, new, length.value))
        buffer.value = value
        return code

    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(sysctlbyname=sysctlbyname))
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "processor", lambda: "arm")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert read_processor.__wrapped__() == Processor("arm64", name, ())
    assert asked == [(b"machdep.cpu.brand_string", 256, None, 0)]


def test_the_processor_of_this_machine_is_read():
    found = read_processor()
    assert found.name
    assert found.architecture
