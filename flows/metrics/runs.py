"""Runs on the Prefect server; it is asked over its API, since importing Prefect takes a second."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import httpx
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from flows import services
from flows.core import outside
from flows.core.database import now
from flows.core.settings import Settings
from flows.services import csrf

logger = logging.getLogger("refit.metrics")

FLOWS = ("build-profiles", "migrate-sessions", "nightly")
_WAITING, _RUNNING = ("SCHEDULED", "PENDING"), ("RUNNING", "CANCELLING")
_ANSWER_SECONDS = 5.0
_LOOK_SECONDS = 30.0  # for all questions together
_MOST = 200  # that the server gives at once


class FlowRun(BaseModel):
    """One run of a flow; `total_run_time` in seconds, no `work_pool_name` if it was started at a shell."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    state_type: str
    total_run_time: float
    end_time: datetime | None = None
    work_pool_name: str | None = None


@dataclass(frozen=True)
class Runs:
    """All that is counted of them.

    Attributes:
        last: flow → its last run that has ended.
        open: queue (empty: none), and `waiting` or `running` → how many runs are due or under way, 200 at most.
    """

    last: Mapping[str, FlowRun] = field(default_factory=dict)
    open: Mapping[tuple[str, ...], int] = field(default_factory=dict)


_RUNS = TypeAdapter(list[FlowRun])


def look(settings: Settings) -> Runs:
    """The runs on the server; none if it doesn't answer."""
    login = services.prefect_login(settings)
    try:
        with httpx.Client(
            base_url=settings.prefect_api,
            auth=login,
            timeout=_ANSWER_SECONDS,
            trust_env=False,
            verify=outside.trusted_by_default(settings.prefect_api),
        ) as server:
            outside.keep_deadlines(server)
            with outside.within(_LOOK_SECONDS):
                server.headers.update(csrf.headers(server))
                return Runs({flow: run for flow in FLOWS for run in _last(server, flow)}, _open(server))
    except (httpx.HTTPError, ValidationError) as error:
        logger.warning("The Prefect server doesn't tell of its runs: %s", error)
        return Runs()


def _last(server: httpx.Client, flow: str) -> list[FlowRun]:
    ended = {"flow_runs": {"end_time": {"is_null_": False}}, "flows": {"name": {"any_": [flow]}}}
    return _ask(server, **ended, sort="END_TIME_DESC", limit=1)


def _open(server: httpx.Client) -> Counter[tuple[str, ...]]:
    # A run that is scheduled for tomorrow doesn't wait.
    due = {"state": {"type": {"any_": [*_WAITING, *_RUNNING]}}, "expected_start_time": {"before_": now().isoformat()}}
    runs = _ask(server, flow_runs=due, limit=_MOST)
    return Counter((run.work_pool_name or "", "running" if run.state_type in _RUNNING else "waiting") for run in runs)


def _ask(server: httpx.Client, **asked: Any) -> list[FlowRun]:
    return _RUNS.validate_json(server.post("/flow_runs/filter", json=asked).raise_for_status().content)
