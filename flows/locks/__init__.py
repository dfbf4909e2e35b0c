"""Exact versions of everything that is installed: how they are resolved, may change, and are known to be fresh."""
