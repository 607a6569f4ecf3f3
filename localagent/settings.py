"""The switches in the environment. They are read when they are needed, never at import."""

from __future__ import annotations

import os

OFFLINE = "LOCALAGENT_OFFLINE"
HUB_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
"""What Hugging Face's own programs go by."""
MEMORY_CHECK = "LOCALAGENT_MEMORY_CHECK"
ENGINE_CHECK = "LOCALAGENT_ENGINE_CHECK"


def switched_on(variable: str) -> bool:
    """Whether the variable says yes."""
    return os.environ.get(variable, "").strip().lower() in {"1", "true", "yes", "on"}


def switched_off(variable: str) -> bool:
    """Whether the variable says no. One that is not set says nothing."""
    return os.environ.get(variable, "").strip().lower() in {"0", "no", "off", "false"}


def why_offline(asked: bool | None = None, *, hub: bool = False) -> str:
    """Why the network must not be used, for a message; "" when it may be.

    What the caller `asked` for goes before the environment. `hub`: it is Hugging Face that would be asked.
    """
    if asked is not None:
        return "offline" if asked else ""
    if switched_on(OFFLINE):
        return f"offline: {OFFLINE} is set"
    return next((f"offline: {each} is set" for each in HUB_OFFLINE if hub and switched_on(each)), "")
