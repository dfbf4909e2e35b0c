"""Snapshots of sessions by hand, by schedule and before moves: ways back to them, and clones of sessions."""
