"""Whether somebody or something works in a session."""
