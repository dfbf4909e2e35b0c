"""Questions to IDEs, before a stop and after it."""
