"""What helps people to write a catalog."""
