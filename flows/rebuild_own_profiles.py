"""Bring the profiles of people's own up to date, one after the other."""

from prefect import flow, get_run_logger

from flows.build_own_profile import build_own_profile
from flows.core import operator_alerts
from flows.core.database import open_database
from flows.core.settings import Settings
from flows.core.settings import load as load_settings
from flows.publishing.own_build_results import BuildResults
from flows.publishing.own_profiles import LimitReached, OwnProfile, OwnProfiles, RoomUsed


@flow(name="rebuild-own-profiles")
def rebuild_own_profiles() -> dict[str, str]:
    """Build each profile of a person's own anew; one that fails stops no other, and its owner alone is told.

    Returns:
        Bundle → why it failed.
    """
    settings = load_settings()
    problems = {}
    for own in OwnProfiles(open_database(settings.database)).all():
        try:
            build_own_profile(own.bundle)
        except RoomUsed as error:
            problems[own.bundle] = str(error)
            tell(settings, own, str(error))
        except LimitReached as error:  # a night takes nothing from what its owner may still build today
            get_run_logger().info("%s waits for the next night: %s", own.profile, error)
        except Exception as error:  # a bug, too: the others are to have their night
            problems[own.bundle] = str(error)
            tell(settings, own, str(error))
    return problems


def tell(settings: Settings, own: OwnProfile, problem: str) -> None:
    """Tell the owner of a profile, and nobody else, why its build has failed."""
    addresses = settings.notify_owners.get(own.owner, ())
    title = f"Refit: your profile {own.profile} could not be built"
    text = f"{problem}\n\nSessions on it stay as they are. `refit profile build` takes a recipe that is mended."
    BuildResults(open_database(settings.database)).note_failure(own.bundle, own.owner, problem)
    for failure in operator_alerts.send_to(addresses, title, text, "notify_owners"):
        get_run_logger().warning("%s", failure)
    get_run_logger().info("The build of %s failed; its owner is %s", own.profile, own.owner)
