"""Inside a session: the folder by which it reaches Refit, and its `refit` command."""
