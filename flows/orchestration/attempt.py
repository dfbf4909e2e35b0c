"""The process of a flow run: `python -m flows.orchestration.attempt ENTRYPOINT`, in the place of Prefect's own engine.

Prefect's engine asks the server anew where the flow of a run is, runs the pull steps of its deployment and imports what
that says. This one runs an entrypoint of the list of flows on offer, which the worker has chosen; of the run itself it
takes the parameters alone, which the flow validates.

With `cancellation` or `crashed` as a second argument it calls the hooks of a run whose process has ended; the state
comes by standard input.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import Flow
from prefect._internal.control_listener import configure_from_env
from prefect.client.schemas.objects import FlowRun, State
from prefect.engine import handle_engine_signals
from prefect.flow_engine import load_flow_run, run_flow
from prefect.logging.loggers import flow_run_logger
from prefect.settings import get_current_settings

from flows.orchestration import offered, results

_HOOKS = {"cancellation": "on_cancellation_hooks", "crashed": "on_crashed_hooks"}


def run(entrypoint: str, run_id: UUID) -> None:
    """Run a flow as the flow run with this id; its state says how it ended."""
    configure_from_env()  # without it, a run that is cancelled would call itself crashed
    results.trust_none()
    with handle_engine_signals(run_id):
        run = load_flow_run(run_id)
        logger: Any = flow_run_logger(run)
        try:
            flow = _flow(entrypoint)
        except Exception:
            logger.exception("The flow can't be imported: %s", entrypoint)
            raise
        ended = run_flow(flow, flow_run=run, error_logger=logger, return_type="state")
        if inspect.iscoroutine(ended):
            asyncio.run(ended)


def call_hooks(entrypoint: str, run_id: UUID, hooks: str, state: State[Any]) -> None:
    """Call what a flow wants to have called after a run that couldn't do so itself; one that fails stops no other."""
    results.trust_none()
    run, flow = load_flow_run(run_id), _flow(entrypoint)
    for hook in getattr(flow, _HOOKS[hooks]):
        _call(hook, flow, run, state)


def _call(hook: Callable[..., object], flow: Flow[..., Any], run: FlowRun, state: State[Any]) -> None:
    try:
        hook(flow=flow, flow_run=run, state=state)
    except Exception:
        name = getattr(hook, "__name__", "a hook")
        flow_run_logger(run, flow).exception("A hook of this flow has failed: %s", name)


def _flow(entrypoint: str) -> Flow[..., Any]:
    """The flow. It keeps no results, and doesn't ask the server where others would be kept."""
    storage = Path(get_current_settings().results.local_storage_path)
    return offered.import_flow(entrypoint).with_options(result_storage=storage, persist_result=False)


def main(arguments: Sequence[str]) -> None:
    """Do what this process is for: see above."""
    entrypoint, *hooks = arguments
    run_id = UUID(os.environ["PREFECT__FLOW_RUN_ID"])
    if hooks:
        call_hooks(entrypoint, run_id, hooks[0], State[Any].model_validate_json(sys.stdin.read()))
    else:
        run(entrypoint, run_id)


if __name__ == "__main__":
    main(sys.argv[1:])
