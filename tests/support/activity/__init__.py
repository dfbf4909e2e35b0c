"""Situations in a session, each with the verdict on its activity."""
