"""The page at `/`: one file, which everybody may read, and the numbers it shows, for those who may ask."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from localagent.distribution import version
from localagent.wording import one_line

if TYPE_CHECKING:
    from localagent.server.access import Access
    from localagent.server.metrics import Metrics
    from localagent.server.models import ModelPool, Served

_LONGEST_REASON = 300


@cache
def page() -> tuple[bytes, dict[str, str]]:
    """The page and the headers it is sent with.

    The policy allows its one script and its one style by their digests, and requests to this server alone:
    were something that a model wrote ever taken for HTML, it still could not run or fetch anything.
    """
    html = files("localagent.server").joinpath("page.html").read_bytes()
    allowed = {
        tag: base64.b64encode(hashlib.sha256(found[1]).digest()).decode()
        for tag in ("script", "style")
        if (found := re.search(rf"<{tag}>(.*?)</{tag}>".encode(), html, re.DOTALL))
    }
    policy = {
        "default-src": "'none'",
        "script-src": f"'sha256-{allowed['script']}'",
        "style-src": f"'sha256-{allowed['style']}'",
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    return html, {
        "content-security-policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "content-type": "text/html; charset=utf-8",
        "cache-control": "no-cache",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "x-frame-options": "DENY",
        "vary": "accept",
    }


def state(pool: ModelPool, metrics: Metrics, access: Access) -> dict[str, Any]:
    """What runs, since the server started. Nothing in it says what anybody asked."""
    totals = metrics.totals()
    return {
        "version": version(),
        "keys": bool(access.keys),
        "models": [_model(served, totals.get(served.name, {})) for served in pool.served.values()],
    }


def _model(served: Served, counted: dict[str, float]) -> dict[str, Any]:
    def mean(name: str) -> float | None:
        number = counted.get(f"{name}_count")
        return counted[f"{name}_sum"] / number if number else None

    model = served.model
    return {
        "name": served.name,
        "state": served.state,
        "error": one_line(str(served.error), _LONGEST_REASON) if served.error else None,
        "lanes": model.lanes if model is not None else 0,
        "context": model.host.context if model is not None else None,
        "running": served.queue.running,
        "waiting": served.queue.waiting,
        "answers": int(counted.get("ok", 0)),
        "failed": int(counted.get("failed", 0)),
        "cancelled": int(counted.get("cancelled", 0)),
        "prompt_tokens": int(counted.get("prompt_tokens_total", 0)),
        "cached_tokens": int(counted.get("cached_tokens_total", 0)),
        "generated_tokens": int(counted.get("generated_tokens_total", 0)),
        "tokens_per_second": mean("decode_tokens_per_second"),
        "first_token_seconds": mean("time_to_first_token_seconds"),
    }
