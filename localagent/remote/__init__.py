"""Models on servers that we ask, held as if they ran here: see README.md."""

from localagent.remote.model import RemoteHost, RemoteModel
from localagent.remote.server import Server
from localagent.remote.turn import RemoteLogprobs

__all__ = ["RemoteHost", "RemoteLogprobs", "RemoteModel", "Server"]
