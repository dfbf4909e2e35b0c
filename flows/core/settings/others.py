"""Sessions that others own and that Refit moves all the same, as people write it: `others:` in settings.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from flows.core.documents import Document
from flows.core.settings.cluster import Label


class HubServers(Document):
    """`others.hub` in settings.yaml: a JupyterHub whose servers Refit moves."""

    api: str = Field(
        "",
        pattern=r"^(|https?://[^\s@?#]+/hub/api)$",
        description="Address of the Hub's API: https://hub.example.org/hub/api. Empty: none.",
    )
    token_file: Path | None = Field(None, description="File with a token of the Hub, which only Refit's user can read.")
    image_option: str = Field(
        "image",
        pattern=r"^[A-Za-z_][A-Za-z0-9_-]*$",
        description="The option of a server (`user_options`) by which its spawner is told the image.",
    )
    start_minutes: float = Field(10.0, gt=0, description="Minutes in which the Hub stops a server, or starts one.")

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.api and self.token_file is None:
            raise ValueError("`api` needs `token_file`")
        return self


class OthersSettings(Document):
    """`others:` in settings.yaml: sessions of notebook controllers and Hubs, which make and remove them."""

    notebooks: tuple[Label, ...] = Field(
        (), description="Namespaces whose Notebooks (kubeflow.org) Refit moves, in the cluster of `kubernetes.context`."
    )
    hub: HubServers = Field(HubServers(), description="A JupyterHub whose servers Refit moves.")
