"""System packages that an operator has installed in sessions: on record, and installed again in each new container."""
