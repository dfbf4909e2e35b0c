"""Prefect's side of Refit, and how far Prefect is trusted: the flows on offer, a run's process, the server."""
