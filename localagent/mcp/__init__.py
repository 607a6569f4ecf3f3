"""Tools of MCP servers: `McpServers` starts the servers that a file names, and offers what they list.

Importing this loads nothing of the `mcp` package, which is an extra: it is loaded when servers are started.
"""

from localagent.mcp.config import HttpServer, ServerConfig, StdioServer, load_config
from localagent.mcp.server import ServerStatus
from localagent.mcp.servers import McpServers

__all__ = ["HttpServer", "McpServers", "ServerConfig", "ServerStatus", "StdioServer", "load_config"]
