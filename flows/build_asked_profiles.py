"""Build the profiles of their own that people have asked for, one after the other, until none waits."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from prefect import flow, get_run_logger

from flows.build_own_profile import build_own_profile, shown_as_waiting
from flows.core.database import open_database
from flows.core.leases import LeaseTaken, lease
from flows.core.settings import Settings
from flows.core.settings import load as load_settings
from flows.migrations.notifications import own_builds
from flows.orchestration.builders import clear_away
from flows.publishing import own_build_log
from flows.publishing.own_build_requests import PLACES, BuildRequests, Request
from flows.publishing.own_build_results import Outcome, Result


@flow(name="build-asked-profiles", on_cancellation=[clear_away], on_crashed=[clear_away])
def build_asked_profiles() -> dict[str, str]:
    """Build what waits in the queue; one build that fails stops no other, and its log tells its owner why.

    Returns:
        Bundle → why it failed.
    """
    settings = load_settings()
    requests, problems = BuildRequests(open_database(settings.database)), dict[str, str]()
    with _place(settings, requests) as has_place:
        for killed in requests.settle() if has_place else ():
            own_builds.tell(settings, killed)
        while has_place and (request := requests.take()):
            result = _build(settings, requests, request)
            own_builds.tell(settings, result)
            if result.problem:
                problems[request.bundle] = result.problem
    return problems


def _build(settings: Settings, requests: BuildRequests, request: Request) -> Result:
    """Build what a request asks for, and take it out of the queue, however that ends; the result is its owner's."""
    outcome, problem = Outcome.killed, ""
    # Until its result is written down, too: people see it under way, or ended with its result.
    with shown_as_waiting(requests.database, request.bundle):
        try:
            with own_build_log.written(settings, request.owner, request.bundle):
                build_own_profile(request.bundle, request.owner)
            outcome = Outcome.built
        except Exception as error:  # a bug, too: the others are to have their turn
            outcome, problem = Outcome.failed, own_build_log.problem_of(error)
            get_run_logger().info("%s of %s wasn't built: %s", request.bundle, request.owner, error)
        finally:
            result = requests.end(request, outcome, problem)
    return result


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
