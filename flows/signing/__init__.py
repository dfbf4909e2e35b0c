"""Signatures: by what key Refit signs what it made, whose signatures count here, and what was taken back."""
