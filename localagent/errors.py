"""Every error that localagent raises on purpose.

    LocalAgentError
    ├── UsageError                  the request itself is wrong (exit code 2)
    │   ├── UnknownModel            no such name or path
    │   ├── UnknownDialect          no parser dialect of that name
    │   ├── DialectMismatch         the model's vocabulary lacks the dialect's markers
    │   ├── InvalidMessage          JSON or a provider's payload that is not a message
    │   ├── InvalidMedia            an image or a recording that cannot be read, or is too large
    │   ├── UnpairedResult          a tool result that answers no call
    │   ├── Unsupported             a part or a message that a provider's format cannot express
    │   ├── UnknownSession          no session, or no entry of a session, has that id
    │   ├── InvalidTool             a tool that cannot be built or is too large, or two with the same name
    │   ├── SchemaRefused           a schema has what cannot be enforced, and was to be, strictly
    │   ├── GrammarTooLarge         the schemas of all tools together are more than can be enforced
    │   ├── CannotBatch             more than one lane asked for, of a model that can have only one
    │   └── ContextOverflow         the prompt does not fit the context window
    ├── CatalogError                models.toml cannot be read
    ├── ModelMissing                a known model whose weights are not on this machine
    ├── DownloadFailed              weights could not be fetched
    ├── DiskFull                    not enough free space for the weights
    ├── HashMismatch                the file's hash is not the expected one
    ├── InvalidWeights              the file exists but is not a model that can be loaded
    ├── EngineMissing               the extra with the inference engine is not installed
    ├── GrammarMissing              the extra that bounds what a model writes is not installed
    ├── ServerMissing               the extra with the HTTP server is not installed
    ├── BuildFailed                 llama.cpp could not be compiled or installed
    ├── EngineBroken                the engine crashes or computes wrong tokens on this machine
    ├── NotEnoughMemory             the model does not fit into this machine's memory
    ├── TemplateFailed              the model's chat template refused the messages
    ├── SaveFailed                  a log or a session could not be written; earlier lines are untouched
    ├── ConversationBusy            another run is adding to the conversation
    ├── EngineFailed                the engine reported a failure while computing
    ├── ConstraintFailed            what bounds the tokens of a generation failed, or allows none
    ├── ServerFailed                a model's server cannot be used
    │   ├── ServerUnreachable       no connection to it can be made
    │   ├── ServerRefused           it answers with an HTTP error, whose status is in `status`
    │   └── StreamBroken            its answer broke off, or is no such answer
    ├── McpFailed                   an MCP server that cannot be started, reached or understood
    └── ToolError                   raised by a tool; the model reads the text and can go on
        └── InvalidArguments        the model's arguments do not fit the tool

A message is one line that says what is wrong, where, and what to do. The command line prints it unchanged
and exits with `exit_code`.
"""

from __future__ import annotations


class LocalAgentError(Exception):
    """Any error that localagent raises on purpose."""

    exit_code = 1

    def __reduce__(self) -> tuple[object, ...]:
        """As it is, for another process: by default it would be made anew, with its text for arguments."""
        return _remade, (type(self), self.args, self.__dict__)


def _remade(
    kind: type[LocalAgentError], args: tuple[object, ...], fields: dict[str, object]
) -> LocalAgentError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error


class UsageError(LocalAgentError):
    """The request is wrong: an option, an argument or the input."""

    exit_code = 2


class UnknownModel(UsageError):
    """The model is neither in the catalogue nor a path."""


class UnknownDialect(UsageError):
    """No parser dialect of that name."""


class DialectMismatch(UsageError):
    """The model's vocabulary lacks the markers of the dialect asked for."""


class InvalidMessage(UsageError, ValueError):
    """Data that is not a message, or not what a provider's format allows; the text says where."""


class InvalidMedia(UsageError, ValueError):
    """An image or a recording that cannot be read, has the wrong type or is too large."""


class UnpairedResult(UsageError):
    """A tool result that answers no call."""


class Unsupported(UsageError):
    """A part, a message or a media type that the receiving side cannot take; the text names it."""


class UnknownSession(UsageError):
    """No session, or no entry of a session, has that id."""


class InvalidTool(UsageError):
    """A tool that cannot be built (the text names the parameter at fault), or two with the same name.

    `part`: its "name", "description" or "schema", if that is too large.
    """

    def __init__(self, message: str, part: str = "") -> None:
        super().__init__(message)
        self.part = part


class SchemaRefused(UsageError):
    """A schema that is to be enforced strictly has what cannot be; the text names tool, path and keyword."""


class GrammarTooLarge(UsageError):
    """The schemas are, together, more than can be enforced within the limits of size and time."""


class CannotBatch(UsageError):
    """More than one lane is asked for, and the model can have only one; the text says why."""


class ContextOverflow(UsageError):
    """The prompt is longer than the context window.

    `prompt_tokens` and `context` are counts of tokens. If `exact` is False, counting stopped early and the
    prompt has more than `prompt_tokens`.
    """

    def __init__(self, prompt_tokens: int, context: int, exact: bool = True) -> None:
        self.prompt_tokens = prompt_tokens
        self.context = context
        self.exact = exact
        super().__init__(
            f"the prompt has {'' if exact else 'more than '}{prompt_tokens:,} tokens and the context window "
            f"holds {context:,}: shorten the prompt or load the model with a larger context"
        )


class CatalogError(LocalAgentError):
    """The model catalogue is missing or does not follow its schema."""


class ModelMissing(LocalAgentError):
    """The model is known, but its weights are not on this machine."""


class DownloadFailed(LocalAgentError):
    """Weights could not be fetched. What arrived is kept, and the next pull continues from it if it can."""


class DiskFull(LocalAgentError):
    """The disk has less free space than the weights need."""


class HashMismatch(LocalAgentError):
    """The file's hash differs from the one in the catalogue or the repository."""


class InvalidWeights(LocalAgentError):
    """The file is not a model that this engine can load."""


class EngineMissing(LocalAgentError):
    """The Python package of an inference engine is not installed."""


class GrammarMissing(LocalAgentError):
    """The Python packages that bound what a model writes are not installed."""


class ServerMissing(LocalAgentError):
    """The Python packages of the HTTP server are not installed."""


class BuildFailed(LocalAgentError):
    """An inference engine could not be compiled or installed; the message names the log."""


class EngineBroken(LocalAgentError):
    """The installed engine crashes or computes wrong tokens on this machine."""


class NotEnoughMemory(LocalAgentError):
    """Model, context and lanes need more memory than is available; the message says what would fit."""


class TemplateFailed(LocalAgentError):
    """The chat template raised an error or is missing."""


class SaveFailed(LocalAgentError):
    """A line could not be appended to a log or a session. Earlier lines are untouched."""


class ConversationBusy(LocalAgentError):
    """Another run is adding to the conversation, in this program or another; only one may at a time."""


class EngineFailed(LocalAgentError):
    """The inference engine reported a failure while running."""


class ConstraintFailed(LocalAgentError):
    """The constraint of a generation failed, or allows no token; the generation ends there, and no other."""


class ServerFailed(LocalAgentError):
    """The server that runs a model cannot be used; the text names its address and says what to do."""


class ServerUnreachable(ServerFailed):
    """No connection to the server can be made."""


class ServerRefused(ServerFailed):
    """The server answers with an HTTP error. `status`: its number. `wait`: the seconds after which it may be
    asked again; None where it does not say.
    """

    def __init__(self, message: str, status: int, wait: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.wait = wait


class StreamBroken(ServerFailed):
    """The server's answer broke off before its end, or cannot be read. What came of it was told before."""


class McpFailed(LocalAgentError):
    """An MCP server cannot be started or reached, or does not speak the protocol; the message names it."""


class ToolError(LocalAgentError):
    """Raise it in a tool: its text becomes the error result that the model reads."""


class InvalidArguments(ToolError):
    """The arguments of a call do not fit the tool; the text tells the model what to write instead."""
