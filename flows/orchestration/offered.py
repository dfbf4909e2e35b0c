"""The flows that Refit offers in Prefect, and which runs of them a worker takes.

Everybody who is logged in can write any deployment and any run. So nothing that runs is looked up by what the API says:
the entrypoint of a deployment is compared with this list, and what is run comes from the list.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from prefect import Flow
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import DeploymentResponse

from flows.core.errors import RefitError

# Module and function of each: the entrypoint of its deployments. A worker runs nothing else.
ENTRYPOINTS: tuple[str, ...] = (
    "flows.lock_requirements:lock_requirements",
    "flows.build_profiles:build_profiles",
    "flows.build_stages:build_stages",
    "flows.cut_release:cut_release",
    "flows.nightly:nightly",
    "flows.create_session:create_session",
    "flows.change_session:change_session",
    "flows.migrate_sessions:migrate_sessions",
    "flows.migrate_sessions:steer_migration",
    "flows.approve_wave:approve_wave",
    "flows.migrate_sessions:recover_migrations",
    "flows.prune_images:prune_images",
    "flows.build_asked_profiles:build_asked_profiles",
)
# Fields by which a deployment could bring along something to run or read; Refit's own never have them. `job_variables`
# are the worker's command, environment and folder.
_OF_DEPLOYMENTS = ("pull_steps", "path", "storage_document_id", "infrastructure_document_id", "job_variables")
_OF_RUNS = ("infrastructure_document_id", "job_variables")


class Refused(RefitError):
    """A flow run that no worker of Refit takes."""


def entrypoint(flow: Flow[..., Any]) -> str:
    """The entry point of a flow in a deployment."""
    return f"{flow.fn.__module__}:{flow.fn.__name__}"


def import_flow(entrypoint: str) -> Flow[..., Any]:
    """One of the flows in the list.

    Raises:
        Refused: it is not in the list.
    """
    if entrypoint not in ENTRYPOINTS:
        raise Refused(f"{entrypoint!r} is no flow that Refit offers.")
    module, _, name = entrypoint.partition(":")
    flow: Flow[..., Any] = getattr(import_module(module), name)
    return flow


def admit(run: FlowRun, deployment: DeploymentResponse | None) -> str:
    """The entrypoint in the list that a run is for. Pure: nothing that either names is read.

    Raises:
        Refused: it is for something else, or brings along what would be run or read.
    """
    if deployment is None or deployment.id != run.deployment_id:
        raise _refused("It belongs to no deployment.")
    brought = [f"its deployment has {name}" for name in _OF_DEPLOYMENTS if getattr(deployment, name)]
    brought += [f"it has {name}" for name in _OF_RUNS if getattr(run, name)]
    if brought:
        raise _refused(f"Refit's own have nothing of the kind: {', '.join(brought)}.")
    if deployment.entrypoint not in ENTRYPOINTS:
        raise _refused(f"Its entrypoint {deployment.entrypoint!r} is no flow that Refit offers.")
    return deployment.entrypoint


def _refused(why: str) -> Refused:
    return Refused(
        "The worker doesn't run this: it runs Refit's own flows alone.",
        why=why,
        hint="start a deployment that `refit serve` has made; `refit serve` also mends one that was changed.",
    )
