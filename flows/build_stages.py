"""A builder on each of several machines: one flow run, a child of the worker there, that builds for a release's run."""

from __future__ import annotations

from prefect import flow

from flows.core.settings import load as load_settings
from flows.images.distributed.build_worker import BuildWorker
from flows.orchestration.builders import clear_away


@flow(name="build-stages", flow_run_name="builder of {run}", on_cancellation=[clear_away], on_crashed=[clear_away])
def build_stages(run: str, systems: list[str]) -> tuple[str, ...]:
    """Build stages for a release's run on this machine until that run is over. Such runs start these by themselves.

    Args:
        run: The name of the release's run among builders.
        systems: Operating systems to build for, e.g. deb12.
    """
    return BuildWorker(load_settings(), run, systems).serve()
