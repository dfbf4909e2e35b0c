"""Rehearsals: an image starts beside a session on a copy of its home, and is checked, before the session is touched."""
