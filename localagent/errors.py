"""Every error that localagent raises on purpose.

    LocalAgentError
    ├── UsageError                  the request itself is wrong (exit code 2)
    │   ├── UnknownModel            no such name or path
    │   ├── UnknownDialect          no such parser dialect
    │   └── ContextOverflow         the prompt does not fit the context window
    ├── CatalogError                models.toml cannot be read
    ├── ModelMissing                known model, weights not on this machine
    ├── DownloadFailed              fetching weights failed; what was fetched is kept for a resume
    ├── DiskFull                    not enough free space for the weights
    ├── HashMismatch                the file is not the one the catalogue promises
    ├── InvalidWeights              the file exists but is no model that can be loaded
    ├── EngineMissing               the extra with the inference engine is not installed
    ├── TemplateFailed              the model's chat template refused the messages
    └── EngineFailed                the engine gave up while computing

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


class ContextOverflow(UsageError):
    """The prompt is longer than the context window.

    `prompt_tokens` and `context` are both counted in tokens.
    """

    def __init__(self, prompt_tokens: int, context: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.context = context
        super().__init__(
            f"the prompt has {prompt_tokens:,} tokens and the context window holds {context:,}: "
            "shorten the prompt or load the model with a larger context"
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
    """The file is no model that this engine can load."""


class EngineMissing(LocalAgentError):
    """The Python package of an inference engine is not installed."""


class TemplateFailed(LocalAgentError):
    """The chat template raised an error or is missing."""


class EngineFailed(LocalAgentError):
    """The inference engine reported a failure while running."""
