"""Blobs that no manifest names any more leave the embedded registry, while it serves reading only.

Nothing may be pushed while they are swept: a blob that arrives between marking and sweeping would be lost. If this
process is killed, `up` finds a registry that runs otherwise than it should: it ends it, together with the sweeping, and
starts it as it should be.
"""

from __future__ import annotations

from dataclasses import replace

from flows.core import documents
from flows.core.errors import RefitError
from flows.core.programs import command
from flows.core.settings import Settings
from flows.services import process
from flows.services.embedded import registry, registry_config
from flows.services.service import Service

SWEEP_SECONDS = 3600.0


def collect(settings: Settings) -> None:
    """Let the embedded registry free what was deleted from it; sessions can be started meanwhile, nothing is pushed.

    Raises:
        RefitError: it was not started by `up`, or it doesn't come back.
    """
    if not (settings.home / "registry/docker/registry/v2/repositories").is_dir():
        return  # nobody has pushed anything yet, which docker-registry calls an error
    with process.alone(settings):
        normal = registry(settings)
        if process.find(normal) and not process.end(normal):
            raise RefitError(
                "The image registry was not started by `refit up`: its garbage is not collected.",
                why="The program that started it would start it again meanwhile.",
                hint="stop it (`systemctl stop refit-registry`), then `refit up` and `refit prune` again.",
            )
        try:
            _sweep(_reading_only(normal, settings))
        finally:
            process.end(normal)
            process.start(normal)
        process.wait_until_answering(normal)


def elsewhere(settings: Settings) -> str:
    """Advice for a person who uses another registry: only its own program can free its space."""
    return (
        f"The space is free once the garbage collection of the registry {settings.registry} has run, with the registry "
        "read-only; docker-registry: `registry garbage-collect CONFIG`, without --delete-untagged, which would remove "
        "what is attached to images."
    )


def _sweep(service: Service) -> None:
    process.start(service)
    process.wait_until_answering(service)
    # A process that ends the registry ends the sweeping as well: both are noted in one place.
    with command.recorded(process.notes(service)):
        config = service.folder / "config.yml"
        # Not --delete-untagged: attachments of images and manifests that an index names have no tag.
        command.run(["docker-registry", "garbage-collect", config], limit=SWEEP_SECONDS)


def _reading_only(service: Service, settings: Settings) -> Service:
    config = registry_config(settings)
    config["storage"]["maintenance"] = {"readonly": {"enabled": True}}
    return replace(service, files={service.folder / "config.yml": documents.dump(config)})
