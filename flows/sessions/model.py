"""A session: plain data, no effects."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, NewType

from pydantic import ConfigDict, Field, TypeAdapter
from pydantic.dataclasses import dataclass as validated

from flows.catalog.model import Access
from flows.core.errors import RefitError

LONGEST_NAME = 40
# Where sshd listens inside a container: snippets/base/files/sshd_config.
SSH_PORT = 2222
# The user name of people in a session: sshd refuses a user without a name.
USER = "dev"
# Where the home is, inside a session.
HOME = "/home/dev"
# The variable that tells an IDE below which path of an address it is; the name is that of OpenDataHub.
PREFIX = "NB_PREFIX"
# A home or a volume, as the keeper of homes and the engine that belongs to it name it. To all others it is a text to be
# kept and compared: on one machine it is the path of a folder, in a cluster the name of a claim.
HomeRef = NewType("HomeRef", str)
# The token of a session, as the keeper of tokens that belongs to its engine names it: on one machine the path of a
# file, in a cluster the name of a Secret. A Refit of before has written a path there, too, which nobody reads.
TokenRef = NewType("TokenRef", str)
_NAME = re.compile(rf"[a-z][a-z0-9-]{{0,{LONGEST_NAME - 1}}}", re.ASCII)


class IllegalName(RefitError):
    """A name that can't be a session's; it becomes a path, a label and a container's name."""

    def __init__(self, name: str) -> None:
        near = nearest_legal(name)
        super().__init__(
            f"{name!r} can't be the name of a session.",
            why=f"A name has a-z, 0-9 and hyphens, begins with a letter, and has at most {LONGEST_NAME} characters.",
            hint=f"take {near!r}, for instance." if near else "choose another name.",
        )


def check_name(name: str) -> str:
    """`name`, if a session may be called so.

    Raises:
        IllegalName: it may not.
    """
    if not _NAME.fullmatch(name):
        raise IllegalName(name)
    return name


def nearest_legal(name: str) -> str:
    """The legal name that looks most like `name`; empty if nothing is left of it."""
    words = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return re.sub(r"^[^a-z]+", "", words)[:LONGEST_NAME].rstrip("-")


@validated(frozen=True, config=ConfigDict(validate_by_name=True, validate_by_alias=True))
class Volume:
    """A folder that a session has beside its home.

    Attributes:
        name: as the session knows it.
        path: where it is inside the container.
        ref: the volume, as its keeper names it; all JSON has it as `folder`, which it was called first.
        read_only: the session can't write there.
        shared: it belongs to no session, and others may have it as well.
    """

    name: str
    path: str
    ref: Annotated[HomeRef, Field(alias="folder")]
    read_only: bool = False
    shared: bool = False


@dataclass(frozen=True)
class Session:
    """One developer's environment: all facts needed to make its container anew, at any time.

    Attributes:
        name: `[a-z][a-z0-9-]*`, at most 40 characters.
        profile: stem of the profile's tag, e.g. `jupyter-minimal-deb12-py311`.
        release: e.g. `2026a`.
        image: digest (`sha256:…`) of its image.
        uid: host uid, its own; the group is 0.
        home: the home that persists, as its keeper names it.
        token_ref: its token, as its keeper names it (never the token itself: this is written to labels); where it is
            recorded as `token_file`, as it was called first.
        generation: counts containers of this session; the next move creates generation + 1.
        late_home: its container has a slot, into which the home is bound (`slot`); else the home is mounted in it.
        volumes: its volumes beside its home.
        gpus: how many GPUs it wants while it runs.
        devices: the names of those that it has, or had last.
        memory: bytes that it may take; 0: as the machine lets.
        cpus: cores that it may take; 0: as the machine lets.
        owned_by: the object of somebody else that it is (`others`); empty: it is Refit's own.
    """

    name: str
    profile: str
    release: str
    image: str
    uid: int
    home: HomeRef
    token_ref: Annotated[TokenRef, Field(alias="token_file")]
    access: Access
    environment: Mapping[str, str] = field(default_factory=dict)
    generation: int = 1
    late_home: bool = False
    volumes: tuple[Volume, ...] = ()
    gpus: int = 0
    devices: tuple[str, ...] = ()
    memory: int = 0
    cpus: float = 0.0
    owned_by: str = ""

    @property
    def container(self) -> str:
        """The name of its container: the same for the same session and generation."""
        return f"refit-{self.name}-{self.generation}"

    @property
    def path(self) -> str:
        """Below which path of its address its IDE is, e.g. `/session/ada`; empty: at the top."""
        return self.environment.get(PREFIX, "").rstrip("/")

    @property
    def entry_ports(self) -> tuple[int, ...]:
        """The ports inside its container at which people come in."""
        return (self.access.port, SSH_PORT) if self.access.port else (SSH_PORT,)

    def to_json(self) -> str:
        """Everything about it as JSON, the same text for the same session."""
        return _AS_JSON.dump_json(self, by_alias=True).decode()

    @classmethod
    def from_json(cls, text: str) -> Session:
        """The session that `to_json` wrote.

        Raises:
            ValueError: the text is something else.
        """
        return _read(text)


_AS_JSON = TypeAdapter(Session)


@lru_cache(maxsize=1 << 11)  # a run asks again and again for the hundreds that it moves
def _read(text: str) -> Session:
    session = _AS_JSON.validate_json(text)
    return replace(session, access=_the_same(session.access))


@lru_cache
def _the_same(access: Access) -> Access:
    """There are few, and thousands of sessions that would each have their own."""
    return access


def session_of(container: str) -> str:
    """The name of the session that a container is called after (`Session.container`)."""
    return container.removeprefix("refit-").rpartition("-")[0]


class DoesNotBegin(RefitError):
    """An image whose container can't be made or begun, whatever session it is for."""


class EngineAway(RefitError):
    """The engine doesn't answer, which says nothing of a session."""


class Running(StrEnum):
    """The state of a container, by the engine."""

    created = "created"
    running = "running"
    stopped = "stopped"


@dataclass(frozen=True)
class Container:
    """A container as the engine sees it.

    Attributes:
        made_from: the session that is written on it.
        pid: its first process.
        started: when it was last started, as exactly as the engine says; none: it never was.
        ended: when it last ended.
        warm: it runs without its home, which comes later.
    """

    name: str
    session: str
    generation: int
    image: str
    running: Running
    made_from: Session | None = None
    pid: int = field(default=0, compare=False)
    started: datetime | None = field(default=None, compare=False)
    ended: datetime | None = field(default=None, compare=False)
    warm: bool = field(default=False, compare=False)
