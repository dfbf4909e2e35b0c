"""Moves of sessions onto other images: each a journalled state machine, carried out, rehearsed, on record."""
