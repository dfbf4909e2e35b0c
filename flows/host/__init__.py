"""Facts about this machine, and calls of its programs."""
