"""The `refit` command: parses, calls, prints. No logic."""
