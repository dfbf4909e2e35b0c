"""Build the profiles of their own that people have asked for, one after the other, until none waits."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from prefect import flow, get_run_logger

from flows.build_own_profile import build_own_profile
from flows.core.database import open_database
from flows.core.leases import LeaseTaken, lease
from flows.core.settings import Settings
from flows.core.settings import load as load_settings
from flows.orchestration.builders import clear_away
from flows.publishing import own_build_log
from flows.publishing.own_build_requests import PLACES, BuildRequests, Request


@flow(name="build-asked-profiles", on_cancellation=[clear_away], on_crashed=[clear_away])
def build_asked_profiles() -> dict[str, str]:
    """Build what waits in the queue; one build that fails stops no other, and its log tells its owner why.

    Returns:
        Bundle → why it failed.
    """
    settings = load_settings()
    requests, problems = BuildRequests(open_database(settings.database)), dict[str, str]()
    with _place(settings, requests) as has_place:
        while has_place and (request := requests.take()):
            try:
                _build(settings, request)
            except Exception as error:  # a bug, too: the others are to have their turn
                problems[request.bundle] = str(error)
                get_run_logger().info("%s of %s wasn't built: %s", request.bundle, request.owner, error)
            finally:
                requests.end(request)
    return problems


def _build(settings: Settings, request: Request) -> None:
    with own_build_log.written(settings, request.owner, request.bundle):
        build_own_profile(request.bundle, request.owner)


@contextmanager
def _place(settings: Settings, requests: BuildRequests) -> Iterator[bool]:
    """Whether this process is one of the few that work the queue off, inside the `with` block."""
    with ExitStack() as stack:
        for number in range(settings.personal_builds.at_once):
            with suppress(LeaseTaken):
                stack.enter_context(lease(requests.database, f"{PLACES}{number}", wait=0))
                yield True
                return
        yield False
