"""The time, in zones that are known, unknown and hostile, and on machines without a database of zones."""

from __future__ import annotations

import re
import zoneinfo
from datetime import UTC, datetime, timedelta

import pytest

from localagent.errors import ToolError
from localagent.toolbox.clock import current_time
from tests.toolbox.calling import call

LINE = re.compile(
    r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d), ([A-Z][a-z]+day), (.+) \((?:\S+, )?UTC([+-]\d\d):(\d\d)\)"
)
SOME_ZONES = {"Europe/Paris", "Europe/London", "America/New_York", "America/Argentina/Buenos_Aires"}


def check(text: str, zone: str) -> None:
    """That it is now, and the right weekday."""
    found = LINE.fullmatch(text)
    assert found, text
    assert found[3] == zone
    moment = datetime.fromisoformat(found[1])
    assert found[2] == moment.strftime("%A")
    minutes = int(found[4]) * 60 + int(found[4][0] + found[5])
    now = (moment - timedelta(minutes=minutes)).replace(tzinfo=UTC)
    assert abs(now - datetime.now(UTC)) < timedelta(minutes=5)


@pytest.mark.parametrize("name", ["UTC", "utc", "Z", "GMT", " Etc/UTC "])
def test_utc(name):
    check(call(current_time, timezone=name), "UTC")


def test_local():
    check(call(current_time), "local time")
    check(call(current_time, timezone=None), "local time")
    check(call(current_time, timezone="  "), "local time")


@pytest.mark.skipif(not zoneinfo.available_timezones() >= SOME_ZONES, reason="no database of time zones")
class TestZones:
    @pytest.mark.parametrize(
        ("name", "zone"),
        [
            ("Europe/Paris", "Europe/Paris"),
            ("europe/paris", "Europe/Paris"),
            ("America/New York", "America/New_York"),
            ("Asia/Kolkata", "Asia/Kolkata"),
        ],
    )
    def test_known(self, name, zone):
        check(call(current_time, timezone=name), zone)

    @pytest.mark.parametrize(
        ("name", "hint"),
        [
            ("Paris", "Europe/Paris"),
            ("Europe/Pari", "Europe/Paris"),
            ("new york", "America/New_York"),
            ("Londn", "Europe/London"),
            ("US/Paris", "Europe/Paris"),
            ("qqqqqqqq", "use an IANA name"),
        ],
    )
    def test_unknown(self, name, hint):
        with pytest.raises(ToolError, match=hint):
            call(current_time, timezone=name)

    @pytest.mark.parametrize(
        "name",
        [
            "../../../etc/passwd",
            "/etc/localtime",
            "Europe",
            "a\0b",
            "x" * 100_000,
            "posixrules",
            "é",
            "\n",
            "+25",
        ],
    )
    def test_hostile(self, name):
        try:
            check(call(current_time, timezone=name), "local time")
        except ToolError as error:
            assert "\n" not in str(error)
            assert len(str(error)) < 300


def test_no_database(monkeypatch):
    monkeypatch.setattr(zoneinfo, "available_timezones", set)
    check(call(current_time, timezone="UTC"), "UTC")
    check(call(current_time), "local time")
    with pytest.raises(ToolError, match="tzdata"):
        call(current_time, timezone="Europe/Paris")
