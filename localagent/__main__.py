"""`python -m localagent` is the `localagent` command."""

from localagent.cli import main

main()
