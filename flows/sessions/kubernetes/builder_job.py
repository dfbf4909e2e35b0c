"""The Job of a builder: the template that an operator has written, and what a Job shares with Refit."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import yaml
from sqlalchemy import make_url

from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.sessions.kubernetes.manifests import KIND

# By this value of a label, Jobs of builders are told from others; so is their container called.
BUILDER = "builder"
RUN = "io.refit.run"
EVERY_ADDRESS = ("0.0.0.0", "::")
_MOST = 1 << 20  # bytes of a template


def template(file: Path) -> dict[str, Any]:
    """The Job of a builder, as an operator has written it.

    Raises:
        RefitError: the file can't be read, or isn't a Job with a namespace and a container `builder`.
    """
    hint = "`kubernetes.builder_job` names it; deploy/builder/job.yaml is one."
    try:
        with file.open("rb") as content:
            document = yaml.safe_load(content.read(_MOST))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise RefitError(f"The Job of builders in {file} can't be read.", why=str(error), hint=hint) from None
    try:
        containers = [each["name"] for each in document["spec"]["template"]["spec"]["containers"]]
        fits = document["kind"] == "Job" and document["metadata"]["namespace"] and containers.count(BUILDER) == 1
        if fits:
            manifest(document, UUID(int=0))
    except (LookupError, TypeError, ValueError):
        fits = False
    if not fits:
        why = (
            f"It needs `kind: Job`, `metadata.namespace` and one container `{BUILDER}`. "
            "`labels` are names with values, and `env` is a list of them."
        )
        raise RefitError(f"{file} has no Job of a builder in it.", why=why, hint=hint)
    return dict(document)


def manifest(job: Mapping[str, Any], run: UUID) -> dict[str, Any]:
    """The Job for a flow run: the template with its name, labels and one variable. Pure."""
    manifest_of_job = deepcopy(dict(job))
    labels = {KIND: BUILDER, RUN: str(run)}
    manifest_of_job["metadata"] = {**manifest_of_job["metadata"], "name": f"refit-builder-{run}"}
    pod = manifest_of_job["spec"]["template"]
    for each in (manifest_of_job, pod):
        each["metadata"] = {**(each.get("metadata") or {})}
        each["metadata"]["labels"] = {**(each["metadata"].get("labels") or {}), **labels}
    (builder,) = (each for each in pod["spec"]["containers"] if each["name"] == BUILDER)
    builder["env"] = [*map(dict, builder.get("env") or ()), {"name": "PREFECT__FLOW_RUN_ID", "value": str(run)}]
    return manifest_of_job


def check_shared(settings: Settings) -> None:
    """Let no Job be made that could find nothing of what it shares with Refit. Pure.

    Raises:
        RefitError: database, registry or Prefect's server answer on this machine alone.
    """
    lacking = []
    if make_url(settings.database).get_backend_name() == "sqlite":
        lacking.append("`database_url`: SQLite is a file of this machine")
    database = urlsplit(settings.database).netloc.rpartition("@")[2]  # nobody is told its password
    hosts = {"registry": settings.registry_host, "database_url": database}
    hosts["prefect_server" if settings.prefect_server else "bind_address"] = urlsplit(settings.prefect_url).netloc
    if settings.bind_address in EVERY_ADDRESS and not settings.prefect_server:
        del hosts["bind_address"]  # `prefect_url` is how it is reached from here
    lacking += [f"`{name}`: {host} is loopback" for name, host in hosts.items() if _is_loopback(host)]
    if lacking:
        raise RefitError(
            "Builders in a cluster can't reach what they share with Refit.",
            why="; ".join(lacking) + ".",
            hint="name addresses that Pods reach (docs/kubernetes.md), or take `kubernetes.builder_job` out.",
        )


def _is_loopback(host: str) -> bool:
    name = urlsplit(f"//{host}").hostname or ""
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"
