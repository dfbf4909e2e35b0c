"""How often a rehearsal has a copy of the home: each time where the storage class makes one, else once a day."""

from __future__ import annotations

from datetime import datetime, timedelta

from flows.core.database import now
from flows.sessions.kubernetes.cluster import Cluster
from flows.sessions.kubernetes.manifests import LABEL
from flows.sessions.model import Session

CLAIMS, COPIED = "persistentvolumeclaims", f"{LABEL}rehearsed"
PAUSE = timedelta(days=1)


def take(cluster: Cluster, session: Session, *, quick: bool) -> bool:
    """Whether this rehearsal has a copy of the home; if so, the claim of the home remembers it.

    Args:
        cluster: where the home is.
        session: the one with the home.
        quick: whether the storage class makes copies.

    Raises:
        RefitError: the cluster doesn't answer, or refuses.
    """
    if quick:
        return True
    claim = cluster.find(CLAIMS, session.home) or {}
    told = ((claim.get("metadata") or {}).get("annotations") or {}).get(COPIED, "")
    if told and now() - datetime.fromisoformat(told) < PAUSE:
        return False
    cluster.patch(CLAIMS, session.home, {"metadata": {"annotations": {COPIED: now().isoformat()}}}, "merge")
    return True
