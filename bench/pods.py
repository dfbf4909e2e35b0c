"""JupyterLab gets a new image in a Kubernetes cluster: for how long is it away?

All start from images that the node has already, on the same claim, behind the same gateway, and the client is the same.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from bench.downtime import slow
from bench.lab import Lab, client, lab
from bench.results import Row
from flows.core import fence
from flows.core.settings.cluster import Snapshots
from flows.gateway import routes
from flows.gateway.proxy import Gateway
from flows.images.registry import Registry
from flows.sessions.ide.jupyter import wait_answer
from flows.sessions.kubernetes import manifests
from flows.sessions.kubernetes.cluster import Cluster, ClusterOptions
from flows.sessions.kubernetes.engine import Kubernetes
from flows.sessions.kubernetes.homes import ClusterHomes
from flows.sessions.model import PREFIX, HomeRef, Session, TokenRef
from tests.support import cluster
from tests.support.waiting import free_port

MOVES = 12
RATIO = 8.0
GRACE = 30.0  # seconds, Kubernetes' own default
_READY, _POD = 120.0, 180.0
TOKEN = "a-token-of-this-benchmark"
RECREATED, COLD = "delete the Pod, create it", "refit without a warm start"
PATCHED = "patch the Pod's image in place"
KEPT = "refit with a snapshot of the home, copied by a Pod"
_FIRST_UID = 300_001
# The lease under which all of it is done, and the name of its snapshots.
LEASE, MOVE = 1, "move"
NODE = "n1"  # of all: the images are there

Way = Callable[[str], None]
"""Brings JupyterLab onto the image with a digest."""


@dataclass(frozen=True)
class Site:
    """A cluster with the images of a lab, and the gateway in front of its sessions.

    Sessions start on the first of the images. Each move is onto another one, as moves are: kubelet waits longer before
    each new start of a container with the same image, up to five minutes.
    """

    lab: Lab
    options: ClusterOptions
    images: tuple[str, ...]

    @property
    def gateway(self) -> Gateway:
        """The way in to all of them."""
        return Gateway(self.lab.settings)

    def configuration(self, digest: str) -> Mapping[str, Any]:
        """The configuration of an image, by the registry."""
        registry, repository = Registry(self.lab.settings), self.lab.settings.repository
        return registry.config(repository, registry.manifest(repository, digest))

    def session(self, name: str, uid: int) -> Session:
        """A session with a claim and a token, that doesn't run."""
        home, profile = HomeRef(f"refit-home-{name}"), self.lab.profile
        session = Session(
            *(name, profile.stem, profile.release, self.images[0], uid, home, TokenRef("token")),
            access=profile.ide.config.access,
            environment={PREFIX: routes.path(name)},
        )
        cluster.claim_home(home, self.options)
        Cluster(self.options).create("secrets", manifests.token(session, self.options, TOKEN))
        return session

    def lead(self, session: Session, address: str) -> None:
        """Lead people to a Pod, as soon as its IDE answers."""
        target = f"http://{address}:{session.access.port}"
        wait_answer(f"{target}{session.path}{session.access.health}", _READY)
        self.gateway.route(session.name, target)


def run() -> list[Row]:
    """JupyterLab gets a new image in a Pod, seen by a client that asks every 50 ms: Refit, and what others do."""
    with _site() as site:
        ways = {
            "refit": _by_refit(site, site.session("warm", _FIRST_UID), warm=True),
            RECREATED: _plain(site, site.session("recreated", _FIRST_UID + 1), in_place=False),
            PATCHED: _plain(site, site.session("patched", _FIRST_UID + 2), in_place=True),
            COLD: _by_refit(site, site.session("cold", _FIRST_UID + 3), warm=False),
            KEPT: _by_refit(site, site.session("kept", _FIRST_UID + 4), warm=True, snapshots=True),
        }
        names = ("warm", "recreated", "patched", "cold", "kept")
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for image in site.images[1:]:  # in turn, so that what else the machine does is everybody's burden
            for (name, update), session in zip(ways.items(), names, strict=True):
                with client(site.gateway.url(routes.path(session)), TOKEN) as somebody:
                    update(image)
                    seconds[name].append(somebody.away())
    return rows(seconds.pop("refit"), seconds)


def rows(ours: list[float], peers: Mapping[str, list[float]]) -> list[Row]:
    """The rows about the seconds for which sessions were away."""
    what = f"downtime of JupyterLab in a Pod on Kubernetes 1.20, image on the node, {len(ours)} moves"
    written = []
    for name, figure in (("p50", median), ("p95", slow)):
        taken = figure(ours)
        others = {peer: figure(seconds) for peer, seconds in peers.items()}
        reached = taken * RATIO <= others[RECREATED]
        written.append(Row(f"{what}: {name}", "s", f"≥ {RATIO:g} × shorter", taken, reached, others))
    return written


@contextmanager
def _site() -> Iterator[Site]:
    with (
        tempfile.TemporaryDirectory(prefix="refit-bench-") as folder,
        lab(gateway_port=free_port(), gateway_api_port=free_port()) as sessions,  # builds before the cluster is taken
        cluster.running(),
        cluster.registry(Path(folder)),
    ):
        digests = (sessions.origin, *(sessions.image(f"move {number}") for number in range(MOVES)))
        for number, digest in enumerate(digests):
            source = f"docker://{sessions.settings.registry_host}/{sessions.settings.repository}@{digest}"
            if cluster.copy_image(source, f"image-{number}", Path(folder)) != digest:
                raise SystemExit(f"{digest} has another digest in the registry of the cluster")
        options = ClusterOptions(
            cluster.REGISTRY,
            cluster.REPOSITORY,
            namespace=cluster.NAMESPACE,
            node_selector={"kubernetes.io/hostname": NODE},
        )
        site = Site(sessions, options, digests)
        engine = Kubernetes(options, site.configuration, site.gateway, Path)
        for digest in digests:
            engine.pull(digest)
        yield site


def _by_refit(site: Site, first: Session, *, warm: bool, snapshots: bool = False) -> Way:
    """The steps of a move that engine and homes carry out, in the order of `move_steps.STEPS`."""
    first = replace(first, late_home=warm)
    engine, now = Kubernetes(site.options, site.configuration, site.gateway, Path), [first]
    homes = ClusterHomes(Cluster(replace(site.options, snapshots=Snapshots.auto)))

    def start(session: Session) -> None:
        engine.start(session.container)
        site.lead(session, engine.address(session.container, session.access.port or 0)[0])

    def update(image: str) -> None:
        before, after = now[0], replace(now[0], generation=now[0].generation + 1, image=image)
        engine.pull(image)
        engine.create(after)
        if warm:
            engine.warm(after)
        if snapshots:
            homes.prepare(before, MOVE)
            homes.copy(before, MOVE)
        engine.block_ingress(before.container, before.entry_ports)
        engine.stop(before.container, GRACE)
        if snapshots:
            homes.delta(before, MOVE)
        start(after)
        engine.remove(before.container)
        if snapshots:
            homes.release(before.name)
            homes.forget(before.name, MOVE)
        now[0] = after

    def under_a_lease(image: str) -> None:
        with fence.needing(lambda: None, number=LEASE):
            update(image)

    engine.create(first)
    start(first)
    return under_a_lease


def _plain(site: Site, session: Session, *, in_place: bool) -> Way:
    """A Pod with one container that is Kubernetes' alone."""
    api, resource = Cluster(site.options), "pods"

    def running(image: str) -> str:
        """The address of the Pod, once it runs this image."""

        def runs(told: Mapping[str, Any] | None) -> bool:
            seen = ((told or {}).get("status") or {}).get("containerStatuses") or ()
            return any("running" in each["state"] and each["imageID"].endswith(image) for each in seen)

        api.wait(resource, session.name, runs, _POD, f"{session.name} doesn't run {image}")
        pod = api.find(resource, session.name)
        return str(pod["status"]["podIP"]) if pod else ""

    def create(image: str) -> None:
        api.create(resource, _pod(site, replace(session, image=image)))
        site.lead(session, running(image))

    def update(image: str) -> None:
        if in_place:
            reference = site.options.reference(image)
            api.patch(resource, session.name, {"spec": {"containers": [{"name": "ide", "image": reference}]}})
            site.lead(session, running(image))
            return
        api.delete(resource, session.name)
        api.wait(resource, session.name, lambda told: told is None, _POD, f"{session.name} doesn't end")
        create(image)

    create(session.image)
    return update


def _pod(site: Site, session: Session) -> dict[str, Any]:
    """The Pod of a session without slots, on the same node, claim and token, with the same limits."""
    pod = manifests.pod(session, site.options, "none")
    spec = pod["spec"]
    slot = spec["containers"][0]
    token_file = next(mount["mountPath"] for mount in slot["volumeMounts"] if mount["name"] == "token")
    variables = {**session.environment, "REFIT_TOKEN_FILE": token_file, "HOME": "/home/dev", "USER": "dev"}
    program = manifests.image_program(site.configuration(session.image))
    mounts = [mount for mount in slot["volumeMounts"] if mount["name"] == "token"]
    mounts.append({"name": "home", "mountPath": "/home"})
    container = {
        **{key: value for key, value in slot.items() if key != "resources"},
        "name": "ide",
        "command": ["/bin/sh", "-c", 'mkdir -p "$HOME" && cd "$HOME" && exec "$@"', "sh", *program],
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "volumeMounts": mounts,
    }
    volumes = [volume for volume in spec["volumes"] if volume["name"] in ("home", "token")]
    metadata = {"name": session.name, "namespace": site.options.namespace}
    return {**pod, "metadata": metadata, "spec": {**spec, "containers": [container], "volumes": volumes}}
