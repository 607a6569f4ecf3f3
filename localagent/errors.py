"""Every error that localagent raises on purpose.

    LocalAgentError
    ├── UsageError                  the request itself is wrong (exit code 2)
    │   ├── UnknownModel            no such name or path
    │   ├── UnknownDialect          no such parser dialect
    │   ├── DialectMismatch         a dialect whose markers the model's vocabulary lacks
    │   ├── InvalidMessage          JSON, or a provider's payload, that is not a message
    │   ├── InvalidMedia            an image or a recording that cannot be read, or is too large
    │   ├── UnpairedResult          a tool result that answers no call
    │   ├── Unsupported             a wire, or the model it leads to, cannot carry a part or a message
    │   ├── UnknownSession          no session, or no entry in it, of that name
    │   ├── InvalidTool             a tool that cannot be built, or two of one name
    │   └── ContextOverflow         the prompt does not fit the context window
    ├── CatalogError                models.toml cannot be read
    ├── ModelMissing                known model, weights not on this machine
    ├── DownloadFailed              fetching weights failed; what was fetched is kept for a resume
    ├── DiskFull                    not enough free space for the weights
    ├── HashMismatch                the file is not the one the catalogue promises
    ├── InvalidWeights              the file exists but is not a model that can be loaded
    ├── EngineMissing               the extra with the inference engine is not installed
    ├── BuildFailed                 llama.cpp could not be compiled or installed
    ├── EngineBroken                the engine crashes or computes wrong tokens on this machine
    ├── NotEnoughMemory             the model does not fit into this machine's memory
    ├── TemplateFailed              the model's chat template refused the messages
    ├── SaveFailed                  a log or a session could not be written; what was there is kept
    ├── EngineFailed                the engine gave up while computing
    ├── McpFailed                   an MCP server that cannot be started, reached or understood
    └── ToolError                   raised by a tool: the model is told, and can go on
        └── InvalidArguments        the model's arguments do not fit the tool

A message is one line that says what is wrong, where, and what to do. The command line prints it as it
stands and exits with `exit_code`.
"""

from __future__ import annotations


class LocalAgentError(Exception):
    """Anything that localagent itself refuses or cannot do."""

    exit_code = 1


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
    """Not a message, or not a payload of the wire; the text says where."""


class InvalidMedia(UsageError, ValueError):
    """Media that cannot be read, are not what they should be, or are too large."""


class UnpairedResult(UsageError):
    """A tool result without a call that it answers."""


class Unsupported(UsageError):
    """A part, a message or a media type that the receiving side cannot carry, by name."""


class UnknownSession(UsageError):
    """No session, or no entry of a session, has that id."""


class InvalidTool(UsageError):
    """A tool that cannot be built, with the parameter at fault, or two that a model cannot tell apart."""


class ContextOverflow(UsageError):
    """The prompt is longer than the context window.

    `prompt_tokens` and `context` are both counted in tokens. Without `exact` the counting stopped at
    `prompt_tokens`, and there are more.
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
    """The model is known and its weights are not on this machine."""


class DownloadFailed(LocalAgentError):
    """Weights could not be fetched."""


class DiskFull(LocalAgentError):
    """The disk has less free space than the weights need."""


class HashMismatch(LocalAgentError):
    """The file's sha256 differs from the catalogue's."""


class InvalidWeights(LocalAgentError):
    """The file is not a model that this engine can load."""


class EngineMissing(LocalAgentError):
    """The Python package of an inference engine is not installed."""


class BuildFailed(LocalAgentError):
    """An inference engine could not be compiled or installed; the message names the log."""


class EngineBroken(LocalAgentError):
    """The engine, as it is installed, crashes or computes wrong tokens on this machine."""


class NotEnoughMemory(LocalAgentError):
    """The model with its context needs more memory than is available; the message says what would fit."""


class TemplateFailed(LocalAgentError):
    """The chat template raised an error or is missing."""


class SaveFailed(LocalAgentError):
    """A line could not be appended to a log or a session. What was written before is untouched."""


class EngineFailed(LocalAgentError):
    """The inference engine reported a failure while running."""


class McpFailed(LocalAgentError):
    """An MCP server cannot be started or reached, or does not speak the protocol; the message names it."""


class ToolError(LocalAgentError):
    """Raised inside a tool: its text becomes the error result that the model reads."""


class InvalidArguments(ToolError):
    """The arguments of a call do not fit the tool; the text tells the model what to write instead."""
