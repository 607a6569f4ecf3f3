"""The environment variables that switch things on or off. They are read when needed, never at import."""

from __future__ import annotations

import os

OFFLINE = "LOCALAGENT_OFFLINE"
HUB_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
"""The variables that Hugging Face's own programs obey."""
MEMORY_CHECK = "LOCALAGENT_MEMORY_CHECK"
ENGINE_CHECK = "LOCALAGENT_ENGINE_CHECK"
URL = "LOCALAGENT_URL"
"""The server to ask in place of a model on this machine."""
API_KEY = "LOCALAGENT_API_KEY"
"""Its key. There is no option for it: other users of a machine can read what a command was called with."""


def switched_on(variable: str) -> bool:
    """Whether the variable says yes."""
    return os.environ.get(variable, "").strip().lower() in {"1", "true", "yes", "on"}


def switched_off(variable: str) -> bool:
    """Whether the variable says no. An unset variable is neither on nor off."""
    return os.environ.get(variable, "").strip().lower() in {"0", "no", "off", "false"}


def why_offline(asked: bool | None = None, *, hub: bool = False) -> str:
    """Why the network must not be used, in words for a message; "" when it may be used.

    The caller's own choice, `asked`, overrides the environment. `hub`: the request would go to Hugging Face,
    so its variables count too.
    """
    if asked is not None:
        return "offline" if asked else ""
    if switched_on(OFFLINE):
        return f"offline: {OFFLINE} is set"
    return next((f"offline: {each} is set" for each in HUB_OFFLINE if hub and switched_on(each)), "")
