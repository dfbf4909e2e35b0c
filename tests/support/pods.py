"""A session, and the options of a cluster for it."""

from __future__ import annotations

from flows.catalog.model import Access
from flows.sessions.kubernetes.manifests import ClusterOptions
from flows.sessions.model import HomeRef, Session, TokenRef

OPTIONS = ClusterOptions("registry.example.com", "team/images", pull_secret="login", node_selector={"pool": "dev"})
SESSION = Session(
    "ada", "p", "2026a", f"sha256:{'a' * 64}", 300_001, HomeRef("refit-home-ada"), TokenRef("token"), Access(port=8888)
)
