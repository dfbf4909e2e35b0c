"""Prefect's side of Refit: the flows on offer, deployments, queues, the worker, a run's process, the server."""
