"""A worker that also runs the flow of the tests: Refit's own runs what Refit offers, and nothing else.

`python -m tests.support.trial_worker` is the worker; with an entrypoint behind it, the process of a run.
"""

import sys
from dataclasses import replace

from flows.core.settings import Settings
from flows.services import prefect_services
from flows.services.service import Service

TRIAL = "tests.support.trial_flow:trial"
_worker = prefect_services.worker


def install() -> None:
    """Let this process start and find it where it would Refit's own worker."""
    prefect_services.worker = with_the_trial


def with_the_trial(settings: Settings) -> Service:
    """The service; it asks more often than Refit's own, so that tests needn't wait for it.

    Not every second: for each poll of each pool the server writes twice.
    """
    made = _worker(settings)
    often = {"PREFECT_WORKER_QUERY_SECONDS": "2", "PREFECT_WORKER_HEARTBEAT_SECONDS": "5"}
    environment = {**made.environment, **often}
    return replace(made, argv=(sys.executable, "-m", __name__), environment=environment)


if __name__ == "__main__":
    from flows.orchestration import attempt, offered, worker

    offered.ENTRYPOINTS += (TRIAL,)
    worker.ATTEMPT = (*worker.ATTEMPT[:-1], "tests.support.trial_worker")
    if sys.argv[1:]:
        attempt.main(sys.argv[1:])
    else:
        worker.main()
