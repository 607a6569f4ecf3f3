"""`localagent chat`: the conversation, the model that answers, the commands, and what is typed."""
