"""The llama.cpp host. Importing it does not import the engine; loading a model does."""

from localagent.hosts.llamacpp.host import LlamaCppHost

__all__ = ["LlamaCppHost"]
