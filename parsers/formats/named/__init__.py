"""Calls as a name, a separator and a JSON object of arguments: Mistral, DeepSeek, Kimi K2, Solar, harmony."""
