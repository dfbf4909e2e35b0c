"""The tokens of sessions on Kubernetes: a Secret for each."""

from __future__ import annotations

import base64
import secrets

from flows.core.programs import program_output
from flows.sessions.kubernetes import manifests
from flows.sessions.kubernetes.cluster import Cluster, ClusterError
from flows.sessions.model import Session, TokenRef, check_name


class SecretTokens:
    """Implements `engine.Tokens` in one namespace of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def token_of(self, name: str) -> TokenRef:
        """The name of the Secret of the session `name`, there or not."""
        return TokenRef(manifests.secret(check_name(name)))

    def make(self, session: Session) -> None:
        """Make the token of a session, unless it has one.

        Raises:
            ClusterError: the API server doesn't answer, or refuses.
        """
        token = secrets.token_urlsafe(32)
        program_output.protect(token)
        self._cluster.ensure("secrets", manifests.token(session, self._cluster.options, token))

    def read(self, session: Session) -> str:
        """The token of a session; kept out of logs from now on.

        Raises:
            ClusterError: it has none, or the API server doesn't answer, or refuses.
        """
        there = self._cluster.find("secrets", manifests.secret(session.name))
        if there is None:
            raise ClusterError(
                f"The session {session.name!r} has no token.",
                why=f"There is no Secret {manifests.secret(session.name)} in {self._cluster.options.namespace}.",
                hint=f"`refit session stop {session.name}` and `refit session start {session.name}` make another one.",
            )
        token = base64.b64decode(there.get("data", {}).get("token", "")).decode(errors="replace").strip()
        program_output.protect(token)
        return token

    def forget(self, name: str) -> None:
        """Remove the token of a session.

        Raises:
            ClusterError: the API server doesn't answer, or refuses.
        """
        self._cluster.delete("secrets", manifests.secret(name))
