"""Calls as tags with raw text between them: Qwen3-Coder, MiniMax, DeepSeek's markup."""
