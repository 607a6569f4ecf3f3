"""Calls as JSON objects: Hermes and its kin."""
