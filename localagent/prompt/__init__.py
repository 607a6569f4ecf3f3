"""From messages to token ids: everything that shapes a model's prompt.

    messages --request--> what is sent --variables--> template variables --template--> text --host--> Prompt

- `request`, `pairing`: which part of a stored conversation is sent, and which result answers which call.
- `variables`, `notation`: messages as a chat template reads them, calls in the model's own notation.
- `template`, `shield`, `sandbox`, `metering`: the template, which is foreign code, and the content, which
  must not forge control tokens.
- `probe`: how a template renders tool calls; `thinking`: how it lets the model think, or not.
- `rendering`: all of it, for the next turn.
"""

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
