"""Changes to a session that is there, for Prefect's UI; the shell does the same without a flow around it."""

from collections.abc import Callable, Mapping
from typing import Literal

from prefect import flow, get_run_logger

from flows.catalog.load import newest_release
from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.core.settings import load as load_settings
from flows.migrations.results import Result
from flows.migrations.start_sessions import start_session
from flows.migrations.switch_profile import go_back, switch_session
from flows.sessions.lifecycle import Sessions


@flow(name="change-session", flow_run_name="{what} session {name}")
def change_session(
    name: str,
    what: Literal["start", "stop", "remove", "change-profile", "rollback"],
    profile: str = "",
    release: str = "",
    force: bool = False,
) -> str:
    """Start, stop or remove a session, or give it another profile or the image that it had before; its home stays.

    Args:
        name: Name of the session.
        what: The action; rollback gives it the image that it had before its last move.
        profile: For change-profile, the other profile, e.g. jupyter-minimal-deb12-py311.
        release: For change-profile, the name of its release. Empty means the newest.
        force: For change-profile and rollback, whether it moves even if something in its home would break.
    """
    settings = load_settings()
    if (what == "change-profile") != bool(profile):
        problem = "A change of profile needs one." if what == "change-profile" else f"{what!r} has no profile."
        raise RefitError(problem, hint="leave `profile` empty, or choose `change-profile` and name one.")
    verbs: Mapping[str, Callable[[], str]] = {
        "start": lambda: _start(settings, name),
        "stop": lambda: _stop(settings, name),
        "remove": lambda: _remove(settings, name),
        "change-profile": lambda: _sentence(_switch(settings, name, profile, release, force)),
        "rollback": lambda: _sentence(go_back(settings, name, force=force)),
    }
    done = verbs[what]()
    get_run_logger().info("%s", done)
    return done


def _start(settings: Settings, name: str) -> str:
    session, result = start_session(settings, name)
    url = Sessions.open(settings).url(session)
    moved = f" Its new image: {result.state}." if result else ""
    return f"{name} runs{f' at {url}' if url else ''}.{moved}"


def _switch(settings: Settings, name: str, profile: str, release: str, force: bool) -> Result:
    return switch_session(settings, name, profile, release or newest_release(settings.catalog), force=force)


def _stop(settings: Settings, name: str) -> str:
    Sessions.open(settings).stop(name)
    return f"{name} is stopped."


def _remove(settings: Settings, name: str) -> str:
    Sessions.open(settings).remove(name)
    return f"{name} is removed; its home stays."


def _sentence(result: Result) -> str:
    """How a move ended.

    Raises:
        RefitError: it was undone, is held, or was not tried.
    """
    if not result.moved:
        raise RefitError(
            f"{result.session} was not moved: {result.state}.",
            why=result.reason or result.error,
            hint=f"`refit migrate history {result.session}` shows its steps.",
        )
    away = f" It was away for {result.downtime:.1f} s." if result.downtime is not None else ""
    return f"{result.session} has the image {result.new}.{away}"
