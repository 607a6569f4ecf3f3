"""The tool that tells the time, in any zone that has an IANA name.

UTC and the local time need no time zone database, which some systems lack.
"""

from __future__ import annotations

import difflib
import zoneinfo
from datetime import UTC, datetime, tzinfo

from localagent.errors import ToolError
from localagent.tools import tool

_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_UTC = frozenset({"utc", "z", "gmt", "etc/utc", "zulu"})


@tool(repeatable=True, kind="read")
def current_time(timezone: str | None = None) -> str:
    """Tell the current date, time and weekday.

    Args:
        timezone: An IANA name such as "Europe/Paris", or "UTC"; without it the time is local.
    """
    if timezone is None or not timezone.strip():
        return tell(datetime.now().astimezone(), "local time")
    zone, name = find_zone(timezone.strip())
    return tell(datetime.now(zone), name)


def tell(now: datetime, zone: str) -> str:
    """A moment in one line, the same in every locale."""
    offset = now.isoformat()[-6:]
    short = now.tzname() or ""
    names = f"UTC{offset}" if not short or short.startswith(("UTC", "+", "-")) else f"{short}, UTC{offset}"
    return f"{now:%Y-%m-%d %H:%M:%S}, {_WEEKDAYS[now.weekday()]}, {zone} ({names})"


def find_zone(name: str) -> tuple[tzinfo, str]:
    """A zone and its proper name, in whatever case it was written. Raises ToolError, with similar names."""
    if name.casefold() in _UTC:
        return UTC, "UTC"
    known = {zone.casefold(): zone for zone in zoneinfo.available_timezones()}
    if not known:
        raise ToolError(
            f"{name!r:.60}: this machine has no time zone database (the package tzdata brings one), "
            "so only UTC and the local time are known"
        )
    wanted = name[:100].casefold().replace(" ", "_")
    if wanted in known:
        try:
            return zoneinfo.ZoneInfo(known[wanted]), known[wanted]
        except (OSError, ValueError, zoneinfo.ZoneInfoNotFoundError) as error:
            raise ToolError(f"the time zone {known[wanted]} cannot be read on this machine") from error
    places = [zone for key, zone in known.items() if key.rpartition("/")[2] == wanted]
    near = sorted(places) or _near(wanted, known)
    hint = f": did you mean {' or '.join(near[:4])}?" if near else ": use an IANA name such as Europe/Paris"
    raise ToolError(f"no time zone {name!r:.60}{hint}")


def _near(wanted: str, known: dict[str, str]) -> list[str]:
    """Zones whose name, or whose last part, is spelled almost like that."""
    names = [known[key] for key in difflib.get_close_matches(wanted, known, 3, 0.7)]
    cities: dict[str, list[str]] = {}
    for key, zone in known.items():
        cities.setdefault(key.rpartition("/")[2], []).append(zone)
    close = difflib.get_close_matches(wanted.rpartition("/")[2], cities, 2, 0.8)
    return list(dict.fromkeys([*(zone for city in close for zone in sorted(cities[city])), *names]))
