"""Prove a captured bundle: lock and build it, start it on a copy of the session's home, and compare."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE

from flows.authoring.capture.decide import missing_in
from flows.authoring.capture.facts import Left, Reason, Source
from flows.build_profiles import build_profiles
from flows.compatibility.capture import content
from flows.compatibility.scan import in_container
from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.core.settings import load as load_settings
from flows.lock_requirements import lock_requirements
from flows.migrations.snapshots.clone_session import Wish, clone
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Session
from flows.sessions.wishes import caller

LONGEST = 25  # characters of a session's name in that of its trial


@dataclass(frozen=True)
class Proof:
    """The outcome of a trial: the image that was started, and what of the capture was not in it."""

    image: str
    lost: tuple[Left, ...]


@task(task_run_name="start {profile} on a copy of {name}", cache_policy=NO_CACHE)
def try_out(name: str, profile: str, release: str, things: dict[str, list[str]], settings: Settings) -> Proof:
    """Start the profile on a copy of a session's home, compare, and remove the copy again."""
    sessions, trial = Sessions.open(settings), f"{name[:LONGEST]}-trial-{secrets.token_hex(3)}"
    try:
        started = clone(settings, name, Wish(trial, profile, release), caller())
        installed = in_container(sessions.engine, started)
        lost = missing_in(things["packages"], things["system"], installed.distributions, installed.system)
        files = _files(sessions, sessions.that_runs(name), started, things["files"])
        return Proof(started.image, (*lost, *files))
    finally:
        if sessions.store.find(trial):
            sessions.remove(trial, purge=True)


def _files(sessions: Sessions, session: Session, trial: Session, paths: Sequence[str]) -> list[Left]:
    """The files that are not in the trial as they are in the session."""
    return [
        Left(Source.file, path, Reason.lost)
        for path in paths
        if _content(sessions, trial, path) != content(sessions.engine, session, path)
    ]


def _content(sessions: Sessions, session: Session, path: str) -> bytes | None:
    try:
        return content(sessions.engine, session, path)
    except RefitError:
        return None


@flow(name="prove-capture", flow_run_name="prove {bundle} of {name}")
def prove_capture(
    name: str,
    bundle: str,
    profile: str,
    release: str,
    packages: list[str],
    system: list[str],
    files: list[str],
    catalog: Path,
) -> Proof:
    """Lock and build a captured bundle, start it on a copy of the session's home, and compare what is in it.

    The copy is a session of its own for that time, and is removed again; the session itself goes on.

    Args:
        name: Name of the session.
        bundle: Name of the bundle that was captured from it.
        profile: Profile that starts from the bundle.
        release: Release of that.
        packages: Names of the Python packages that the bundle asks for.
        system: Names of its system packages.
        files: Paths of its files.
        catalog: Folder of the catalog.
    """
    settings = load_settings().model_copy(update={"catalog": catalog})
    lock_requirements(release, [bundle], catalog=catalog)
    build_profiles(release, [profile], catalog=catalog)
    things = {"packages": packages, "system": system, "files": files}
    proof = try_out(name, profile, release, things, settings)
    get_run_logger().info("%s was not in %s", ", ".join(left.name for left in proof.lost) or "nothing", proof.image)
    return proof
