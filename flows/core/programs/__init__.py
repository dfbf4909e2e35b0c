"""Programs: run, started, watched, ended with all their descendants, and on record."""
