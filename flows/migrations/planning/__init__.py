"""The plan of a rollout: which session moves when, and why not yet. Pure decisions over plain data."""
