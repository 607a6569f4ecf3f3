"""Tools of MCP servers: `McpServers` starts the servers listed in a file and offers their tools.

Importing this does not import the `mcp` package, which is an extra: that happens when servers are started.
"""

from localagent.mcp.config import HttpServer, ServerConfig, StdioServer, load_config
from localagent.mcp.server import ServerStatus
from localagent.mcp.servers import McpServers

__all__ = ["HttpServer", "McpServers", "ServerConfig", "ServerStatus", "StdioServer", "load_config"]
