"""localagent: language models on the machine in front of you, with tool calls that work."""
