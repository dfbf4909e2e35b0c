"""The gateway in front of sessions, and which of its paths leads where."""
