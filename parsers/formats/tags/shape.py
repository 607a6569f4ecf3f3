"""How the tags of a call are spelled, and where they are alike in several formats."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...literals.near import NearTags, near_tags

NO_KEY = re.compile(r"""[\s="'`]""")
"""What is in no name of an argument: a piece of its tag would be [torn-attribute]."""
CRLF = "\r\n"
LINE_ENDS = (CRLF, "\n")


@dataclass(frozen=True, slots=True)
class Shape:
    """How the tags are spelled.

    `call` and `parameter` are written in front of the name, `quote` around it: other
    quotation marks, or none, are a slip. Attributes may follow. `around`: white space that is markup at both
    ends of a value, the last one being the format's own. `verbatim`: what may stand around a value to say
    that no tag in it counts. `slips`: the tags that end a value as well as `parameter_end`, which models of
    this format at times leave out. `inserted`: a beginning of opening tags, and what some models write behind
    it; `blanks`: what others write in place of the blank in them. `strays`: the tags that may stand behind a
    whole call and mean nothing there.
    """

    call: str
    call_end: str
    parameter: str
    parameter_end: str
    quote: str = ""
    around: tuple[str, ...] = ()
    verbatim: tuple[str, str] | None = None
    slips: tuple[str, ...] = ()
    inserted: tuple[str, str] = ("", "")
    blanks: tuple[str, ...] = ()
    strays: tuple[str, ...] = ()

    def alias(self, tag: str) -> tuple[str, ...]:
        """How else an opening tag may be written, if at all."""
        behind, inserted = self.inserted
        collapsed = (tag.replace(" ", blank, 1) for blank in self.blanks)
        return (tag.replace(behind, behind + inserted, 1),) if inserted else (*collapsed,)

    @property
    def tags(self) -> tuple[str, ...]:
        """Every tag, as far as it is the same in all calls."""
        return (self.call, self.call_end, self.parameter, self.parameter_end)

    @property
    def near(self) -> NearTags:
        """What is nearly one of them."""
        closers = (self.parameter_end, self.call_end)
        return near_tags(closers, (self.parameter, self.call), "\n" in self.around)


FUNCTION = Shape(
    "<function=",
    "</function>",
    "<parameter=",
    "</parameter>",
    around=LINE_ENDS,
    slips=("<parameter=", "</function>"),
    strays=("</function>", "</function_invocation>"),
)
"""Qwen3-Coder, and what follows it."""
FUNCTION_INLINE = Shape("<function=", "</function>", "<parameter=", "</parameter>", around=LINE_ENDS)
"""Seed-OSS, which writes no line ends around most values [loose-tags]."""
INVOKE = Shape("<invoke name=", "</invoke>", "<parameter name=", "</parameter>", quote='"')
"""MiniMax M2."""
NAMED_FUNCTION = Shape(
    "<function name=",
    "</function>",
    "<param name=",
    "</param>",
    quote='"',
    verbatim=("<![CDATA[", "]]>"),
    blanks=("", "\u0120"),
)
"""MiniCPM5."""


DSML = "\uff5cDSML\uff5c"
"""The token in the tags of DeepSeek's markup."""
GCML = "\uff5cGCML\uff5c"
"""The same in GigaChat's."""


def dsml(token: str = DSML) -> Shape:
    """DeepSeek's markup. `token`: the token in its tags."""
    return Shape(
        f"<{token}invoke name=",
        f"</{token}invoke>",
        f"<{token}parameter name=",
        f"</{token}parameter>",
        quote='"',
    )
