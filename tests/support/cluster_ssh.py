"""A session in a cluster that lets people in by ssh, and moves between images that have an sshd."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows import services
from flows.core.settings.cluster import ClusterSettings, Snapshots
from flows.images.registry import Registry
from flows.sessions.kubernetes import isolation
from tests.support import cluster_images, variants
from tests.support.cluster import NAMESPACE, kubectl
from tests.support.cluster_moves import ClusterScene, session_between, settings_for_cluster
from tests.support.waiting import free_span

PROFILE, RELEASE = "light-minimal-deb12-py311", "2026a"
# The bridge between this machine and the nodes.
GATEWAY = "10.99.0.1/32"


@contextmanager
def scene_with_ssh(folder: Path, owner: str = "", **more: object) -> Iterator[ClusterScene]:
    """Such a session, on one of two images; services that a test starts for it end with it."""
    chosen = ClusterSettings(namespace=NAMESPACE, home_gb=1, snapshots=Snapshots.none, gateway_addresses=(GATEWAY,))
    settings = settings_for_cluster(folder / "refit", kubernetes=chosen, ssh_ports=free_span(), **more)
    one, two, bad = (
        cluster_images.push(f"late-ssh-{name}", before, folder, late=True, ssh=True)
        for name, before in {"one": ":", "two": ":", "bad": "exit 3"}.items()
    )
    registry = Registry(settings)
    for digest in (one, two, bad):
        variants.sign(settings, registry, registry.manifest(settings.repository, digest), {})
    try:
        with session_between(settings, PROFILE, cluster_images.LATE_SERVER, (one, two), bad, owner=owner) as scene:
            try:
                yield scene
            finally:
                services.down(settings)
    finally:
        kubectl("delete", "networkpolicy", isolation.NAME, "--ignore-not-found")
