"""Tests that other servers have of themselves, run against ours."""
