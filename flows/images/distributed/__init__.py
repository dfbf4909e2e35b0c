"""One release built by several machines: stages are handed over, taken, and brought back."""
