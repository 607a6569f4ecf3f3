"""From messages to token ids: everything that shapes a model's prompt. See README.md."""

from localagent.prompt.request import LeftOut, Request, RequestWarning, Target, build_request
from localagent.prompt.segments import Mixed, Prompt, Rendered, Segment, TooManyTokens, Trusted
from localagent.prompt.template import ChatTemplate

__all__ = [
    "ChatTemplate",
    "LeftOut",
    "Mixed",
    "Prompt",
    "Rendered",
    "Request",
    "RequestWarning",
    "Segment",
    "Target",
    "TooManyTokens",
    "Trusted",
    "build_request",
]
