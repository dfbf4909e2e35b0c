"""Giving a session another profile: a move like every other, to the newest tested image of that profile."""

from __future__ import annotations

from dataclasses import replace

from flows.catalog import load
from flows.catalog.model import Profile
from flows.compatibility.scans import obstacles
from flows.errors import RefitError
from flows.images.registry import Registry
from flows.migrations.carry import Carrier, Result
from flows.plan_migration import Planning
from flows.publishing import evidence
from flows.publishing.publish import current
from flows.sessions.model import Session
from flows.settings import Settings


def switch_session(settings: Settings, name: str, profile: str, release: str, *, anyway: bool = False) -> Result:
    """Move a session that runs to another profile at once: whoever asks for it agrees to be interrupted.

    Address, token, home and volumes stay; GPUs, memory and cores are what the other profile says. What fails is undone.

    Args:
        settings: those in force.
        name: the session.
        profile: stem of the other profile, e.g. `runtime-minimal-deb12-py311`.
        release: its release.
        anyway: whether it moves where something in its home would stop working.

    Raises:
        RefitError: there is no such session, profile or image, it can't be moved, or its home doesn't fit.
    """
    registry, planning = Registry(settings), Planning(settings)
    chosen = load.profile(load.load_catalog(settings.catalog), release, profile)
    session, image = planning.sessions.store.session(name), current(chosen.stem, release, registry)
    if image is None:
        raise RefitError(
            f"There is no tested image of {chosen.stem} in release {release}.",
            fix=f"`refit build {release} --profile {chosen.stem}` makes it.",
        )
    if not anyway and (why := obstacles(settings, {name: (session, image)}).get(name)):
        raise RefitError(
            f"What is in the home of {name!r} doesn't go together with {chosen.stem}.",
            why=why,
            fix="mend it first, or say `--anyway`.",
        )
    decision = planning.to_image(name, image)
    changes = evidence.changes(evidence.packages(registry, session.image), evidence.packages(registry, image))
    return Carrier.open(settings).carry_out(decision, str(changes), lambda after: of_profile(after, chosen))


def of_profile(session: Session, profile: Profile) -> Session:
    """A session as one of this profile. Pure."""
    resources = profile.resources
    return replace(
        session,
        profile=profile.stem,
        release=profile.release,
        gpus=resources.gpus,
        memory=resources.memory or 0,
        cpus=resources.cpus or 0.0,
    )
