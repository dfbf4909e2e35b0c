"""Snapshots that people and schedules take of sessions, and the copies that new sessions begin with."""
