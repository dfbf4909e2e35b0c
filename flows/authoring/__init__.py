"""Help for people who write a catalog."""
