"""How often a rehearsal has a copy of the home: each time where the storage class makes one, else once a day."""

from __future__ import annotations

from datetime import datetime, timedelta

from flows.core.database import now
from flows.sessions.engine import Homes
from flows.sessions.kubernetes.cluster import Cluster
from flows.sessions.kubernetes.manifests import LABEL
from flows.sessions.model import Session

CLAIMS, COPIED = "persistentvolumeclaims", f"{LABEL}rehearsed"
PAUSE = timedelta(days=1)


def take(cluster: Cluster, homes: Homes, session: Session) -> bool:
    """Whether this rehearsal has a copy of the home; if so, the claim of the home remembers it.

    Raises:
        RefitError: the cluster doesn't answer, or refuses.
    """
    claim = cluster.find(CLAIMS, session.home.name) or {}
    told = ((claim.get("metadata") or {}).get("annotations") or {}).get(COPIED, "")
    if told and now() - datetime.fromisoformat(told) < PAUSE:
        return False
    if not homes.snapshot_cost(session):
        return True
    cluster.patch(CLAIMS, session.home.name, {"metadata": {"annotations": {COPIED: now().isoformat()}}}, "merge")
    return True
