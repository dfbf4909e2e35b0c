"""The gateway, the way in by a browser: configurable-http-proxy in front of all sessions, and which path leads where.

The ways in by ssh are `sessions.ssh` and `jump`.
"""
