"""Models that run on a server, and are held as if they ran here."""

from localagent.hosts.remote.http import Server
from localagent.remote.model import RemoteHost, RemoteModel
from localagent.remote.turn import RemoteLogprobs

__all__ = ["RemoteHost", "RemoteLogprobs", "RemoteModel", "Server"]
