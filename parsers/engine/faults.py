"""How a reader gives up on a call. The model's fault, so it never leaves the parser: it becomes Malformed."""

from __future__ import annotations

from ..events import Reason


class Fault(Exception):
    """The call at hand cannot be read.

    `balanced` says whether brackets and quotes from here on can be trusted to find the end of the call;
    otherwise only the next marker ends it. `final` says that the reason holds whatever comes next.
    """

    def __init__(self, reason: Reason, *, balanced: bool = True, final: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.balanced = balanced
        self.final = final
