"""The time, in zones that are known, unknown and hostile, and on machines without a database of zones."""

from __future__ import annotations

import re
import zoneinfo
from datetime import UTC, datetime, timedelta, timezone

import pytest

from localagent.errors import ToolError
from localagent.toolbox.clock import current_time, find_zone, tell
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


WINTER = datetime(2026, 1, 5, 3, 4, 9, 99)


@pytest.mark.parametrize(
    ("zone", "shown"),
    [
        (UTC, "(UTC+00:00)"),
        (timezone(timedelta(hours=-3, minutes=-30)), "(UTC-03:30)"),
        (timezone(timedelta(hours=5, minutes=45), "+0545"), "(UTC+05:45)"),
        (timezone(timedelta(hours=-3), "-03"), "(UTC-03:00)"),
        (timezone(timedelta(hours=1), "CET"), "(CET, UTC+01:00)"),
        (timezone(timedelta(hours=1), ""), "(UTC+01:00)"),
    ],
)
def test_a_moment_in_a_line(zone, shown):
    assert tell(WINTER.replace(tzinfo=zone), "here") == f"2026-01-05 03:04:09, Monday, here {shown}"
    sunday = WINTER.replace(tzinfo=zone) + timedelta(days=6)
    assert tell(sunday, "here") == f"2026-01-11 03:04:09, Sunday, here {shown}"


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


PLACES = {"A/Rome", "B/Rome", "C/Rome", "D/Rome", "E/Rome", "A/Romes", "Z/Paris", "Z/Oslo"}


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("rome", ": did you mean A/Rome or B/Rome or C/Rome or D/Rome?"),
        ("X/Paris", ": did you mean Z/Paris?"),
        ("zslo", ": did you mean Z/Oslo?"),
        ("qq", ": use an IANA name such as Europe/Paris"),
    ],
)
def test_what_is_spelled_almost_like_that(monkeypatch, name, hint):
    monkeypatch.setattr(zoneinfo, "available_timezones", lambda: PLACES)
    with pytest.raises(ToolError) as refused:
        find_zone(name)
    assert str(refused.value) == f"no time zone {name!r}{hint}"


def test_a_zone_that_is_known_and_cannot_be_read(monkeypatch):
    monkeypatch.setattr(zoneinfo, "available_timezones", lambda: PLACES)
    with pytest.raises(ToolError, match=r"^the time zone Z/Oslo cannot be read on this machine$"):
        find_zone("z/OSLO")


def test_no_database(monkeypatch):
    monkeypatch.setattr(zoneinfo, "available_timezones", set)
    check(call(current_time, timezone="UTC"), "UTC")
    check(call(current_time), "local time")
    with pytest.raises(ToolError, match="tzdata"):
        call(current_time, timezone="Europe/Paris")
