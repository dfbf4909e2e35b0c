"""The Refit that a namespace belongs to: its database is the one record of the sessions there."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from flows.core.atomic_files import kept_secret
from flows.core.settings import Settings
from flows.sessions.kubernetes.manifests import ClusterOptions

_FILE = "instance"
# A Pod with a service account has its token here.
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


def options(settings: Settings) -> ClusterOptions:
    """The options of these settings, for one who acts: another Refit's namespace is left alone."""
    return replace(looking(settings), owner=_owner(settings))


def looking(settings: Settings) -> ClusterOptions:
    """The options of these settings, for one who changes nothing."""
    return replace(ClusterOptions.of(settings), inside=_SERVICE_ACCOUNT.exists())


def _owner(settings: Settings) -> str:
    """The same for all processes with one database, and for no others."""
    url = urlsplit(settings.database_url)
    told = f"{url.hostname}:{url.port}{url.path}" if url.hostname else kept_secret(settings.folder() / _FILE)
    return hashlib.sha256(told.encode()).hexdigest()[:16]
