"""Start a session from the newest tested image of a profile."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from prefect import flow, get_run_logger, task
from prefect.artifacts import create_link_artifact
from prefect.cache_policies import NO_CACHE

from flows.catalog.model import Profile
from flows.core.settings import Settings
from flows.core.settings import load as load_settings
from flows.migrations.start_sessions import make_session, named, newest_image
from flows.sessions.homes.volumes import Wanted, read_wanted
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Session


@task(task_run_name="find the image of {profile.stem}", cache_policy=NO_CACHE)
def find_image(profile: Profile, settings: Settings) -> str:
    """Digest of the profile's newest tested image."""
    return newest_image(settings, profile)


@task(task_run_name="start {name}", cache_policy=NO_CACHE)
def start(
    name: str, profile: Profile, image: str, settings: Settings, volumes: Sequence[Wanted], owner: str
) -> Session:
    """Make home, volumes, token and container, and wait until the IDE answers."""
    return make_session(settings, name, profile, image, volumes, owner=owner)


@flow(name="create-session", flow_run_name="create session {name}")
def create_session(
    name: str,
    profile: str,
    release: str = "",
    catalog: Path | None = None,
    volumes: tuple[str, ...] = (),
    gpus: int | None = None,
    owner: str = "",
) -> Session:
    """Start a session from the newest tested image of a profile.

    Args:
        name: Name of the session: small letters, digits and hyphens.
        profile: The profile that it starts from, e.g. jupyter-minimal-deb12-py311.
        release: Name of the release, e.g. 2026a. Empty means the newest.
        catalog: Folder of the catalog. Empty means the one of the settings.
        volumes: Volumes beside its home and those of its profile, each as NAME:/path or NAME:/path:ro.
        gpus: How many GPUs it has while it runs. Empty means as many as its profile says.
        owner: The person whose session it is, as they log in. Empty means nobody in particular.
    """
    settings = load_settings()
    chosen = named(settings.model_copy(update={"catalog": catalog or settings.catalog}), release, profile)
    if gpus is not None:
        chosen = replace(chosen, resources=chosen.resources.model_copy(update={"gpus": gpus}))
    mounts = read_wanted((*chosen.volumes, *volumes))
    session = start(name, chosen, find_image(chosen, settings), settings, mounts, owner.strip())
    url = Sessions.open(settings).url(session)
    get_run_logger().info("session %s runs at %s", name, url)
    if url:
        create_link_artifact(key=f"session-{name}", link=url, description=f"Session {name}")
    return session
