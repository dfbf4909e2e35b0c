"""Which part of a build may be done here and now: nothing for a system that is paused or needs other machines.

Stages of different systems share nothing, so a release can be split between them without anything being built twice.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from uuid import UUID

from prefect import get_client, runtime
from prefect.client.schemas.objects import WorkPool
from prefect.exceptions import ObjectNotFound

from flows.catalog.model import Base, Catalog, Profile
from flows.core.errors import RefitError, UnknownName
from flows.core.settings import Settings
from flows.orchestration.queues import PAGE, machines, obstacle, pool_of, system_of, template
from flows.releases.plan import chosen
from flows.services.prefect_services import POOL


@dataclass(frozen=True)
class Request:
    """A request for a build: parameters of the flow, which explains them."""

    release: str
    profiles: Sequence[str] = ()
    systems: Sequence[str] = ()
    force: bool = False


@dataclass(frozen=True)
class Share:
    """The part that a run builds, and why it leaves out the rest.

    Attributes:
        profiles: those that are built.
        left: operating system → why nothing is built for it.
    """

    profiles: tuple[Profile, ...]
    left: Mapping[str, str] = field(default_factory=dict)


def admit(request: Request, recipes: Catalog, settings: Settings, parameters: Mapping[str, object]) -> Share:
    """The part that the current run is to build.

    The part that it leaves out is queued with the same `parameters` where the run itself came from a queue; a person at
    a shell is told instead.

    Raises:
        UnknownName: there is no such release, profile or operating system.
        RefitError: a person at a shell wants only what is left out.
    """
    profiles_asked = select(request, recipes)
    bases = {profile.base.name: profile.base for profile in profiles_asked}
    # First say so, then look: of a build and a drain that begin at once, at least one sees the other.
    _mark(bases)
    share = split(profiles_asked, {} if request.force else _closed(bases.values(), settings))
    if share.left:
        _mark({profile.base.name for profile in share.profiles})
        _leave(share, request, parameters)
    return share


def select(request: Request, recipes: Catalog) -> tuple[Profile, ...]:
    """The profiles that are asked for.

    Raises:
        UnknownName: one of the names is not there.
        RefitError: the release has none for these systems.
    """
    for system in request.systems:
        if system not in recipes.bases:
            raise UnknownName("operating system", system, recipes.bases, where=str(recipes.root / "base"))
    profiles = chosen(recipes, request.release, request.profiles)
    profiles_chosen = tuple(
        profile for profile in profiles if not request.systems or profile.base.name in request.systems
    )
    if not profiles_chosen:
        raise RefitError(
            f"Nothing that is asked for of release {request.release} is for {_names(request.systems)}.",
            hint="choose another `--os`, or other profiles.",
        )
    return profiles_chosen


def split(profiles: Iterable[Profile], closed: Mapping[str, str]) -> Share:
    """Keep apart what may be built, and what not; `closed` says why: operating system → reason."""
    listed = tuple(profiles)
    systems = dict.fromkeys(profile.base.name for profile in listed)
    return Share(
        profiles=tuple(profile for profile in listed if profile.base.name not in closed),
        left={system: closed[system] for system in systems if system in closed},
    )


def closed(
    bases: Iterable[Base],
    pools: Mapping[str, WorkPool],
    settings: Settings,
    builders: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> dict[str, str]:
    """Operating system → why nothing is to be built for it now.

    Args:
        bases: the operating systems to build for.
        pools: system → its work pool.
        settings: whether this machine builds, several do, or Jobs of a cluster.
        builders: system → the machines that can build for it, where several do.
    """
    reasons: dict[str, str] = {}
    by_machines = settings.builders and settings.kubernetes.builder_job is None  # Jobs build for any
    for base in bases:
        if base.name in pools and pools[base.name].is_paused:
            reasons[base.name] = "it is paused"
        elif by_machines and not builders.get(base.name):
            reasons[base.name] = "no machine is there whose worker builds for it"
        elif not settings.builders and (why := obstacle(base.name, template(base), settings)):
            reasons[base.name] = why
    return reasons


def _closed(bases: Iterable[Base], settings: Settings) -> dict[str, str]:
    systems = tuple(bases)
    with get_client(sync_client=True) as client:
        pools = {system_of(pool.name): pool for pool in client.read_work_pools(limit=PAGE)}
        builders = {base.name: machines(client, base.name) for base in systems} if settings.builders else {}
    # A run from the queue of a system was let through already, by the server and by the worker that took it.
    reasons = closed(systems, pools, settings, builders)
    return {system: why for system, why in reasons.items() if system != runtime.deployment.name}


def _leave(share: Share, request: Request, parameters: Mapping[str, object]) -> None:
    """See to it that what is left out is not forgotten."""
    if runtime.deployment.id:
        for system in share.left:
            later = {**parameters, "release": request.release, "systems": [system]}
            _hand_over(f"build-profiles/{system}", later)
    elif not share.profiles:
        raise RefitError(
            f"Nothing was built for {_names(share.left)}.",
            why="; ".join(f"{system}: {why}" for system, why in share.left.items()) + ".",
            hint=f"`refit queue resume {next(iter(share.left))}` if it is paused; `--force` builds all the same.",
        )


def _hand_over(deployment: str, parameters: Mapping[str, object]) -> None:
    """Queue what the current run leaves out: once, however often it is repeated."""
    with get_client(sync_client=True) as client:
        try:
            target = client.read_deployment_by_name(deployment)
        except ObjectNotFound:
            raise RefitError(f"There is no deployment {deployment}.", hint="`refit serve` makes it.") from None
        client.create_flow_run_from_deployment(
            target.id,
            parameters=dict(parameters),
            idempotency_key=f"{runtime.flow_run.id} {deployment} {parameters['release']}",
        )


def _mark(systems: Iterable[str]) -> None:
    """Say which operating systems the current run builds for: a person who drains one of them waits for it."""
    run = UUID(str(runtime.flow_run.id))
    with get_client(sync_client=True) as client:
        others = [tag for tag in client.read_flow_run(run).tags if not tag.startswith(f"{POOL}-")]
        client.update_flow_run(run, tags=[*others, *sorted(map(pool_of, systems))])


def _names(systems: Iterable[str]) -> str:
    return ", ".join(systems)
