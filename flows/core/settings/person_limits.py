"""Limits of a person, as people write them: `person_limits:` in settings.yaml."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from flows.core.documents import Document

GroupName = Annotated[str, StringConstraints(min_length=1, max_length=255)]


class PersonLimit(Document):
    """The most that one person may have. Unset: this says nothing of it; 0: no limit."""

    sessions: int | None = Field(None, ge=0, description="Sessions that a person may have; unset or 0: no limit.")
    memory_gb: float | None = Field(
        None,
        ge=0,
        allow_inf_nan=False,
        description="GB of memory that the sessions of a person may take that run; unset or 0: no limit.",
    )
    cpus: float | None = Field(
        None,
        ge=0,
        allow_inf_nan=False,
        description="Cores that the sessions of a person may take that run; unset or 0: no limit.",
    )
    home_gb: float | None = Field(
        None,
        ge=0,
        allow_inf_nan=False,
        description="GB that each home and volume of a person may take, in a pool; unset: as `session_home` says; "
        "0: no limit.",
    )
    gpus: int | None = Field(
        None, ge=0, description="GPUs that the sessions of a person may have that run; unset or 0: no limit."
    )


class PersonLimits(PersonLimit):
    """The limits of all people, and those of groups of the Hub."""

    groups: dict[GroupName, PersonLimit] = Field(
        {},
        description="Group of the Hub → `sessions`, `memory_gb`, `cpus`, `gpus`, `home_gb` of its members, in the "
        "place of those above; of several groups, the most generous holds.",
    )
