"""A service of a home: the program that it is, where it listens, how it is asked whether it answers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from flows.core.atomic_files import kept_secret
from flows.core.programs import program_output

# Variables that a service takes over from the shell that starts it; everything else comes from Refit's settings.
_INHERITED = (
    *("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "XDG_RUNTIME_DIR", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    *("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"),
)


@dataclass(frozen=True)
class Service:
    """One service.

    Attributes:
        name: `registry`, `prefect` or `worker`.
        title: its name in sentences.
        argv: its program; no two services of a machine have the same.
        environment: variables that make it what it is; secrets are among them.
        inherited: variables of the shell that it is started from.
        folder: where it runs and keeps what `prepare` writes.
        log: file for its output.
        health: URL that tells whether it does its work.
        socket: name of a socket in `folder` at which `health` is asked, in the place of a port.
        healthy: reads the answer of `health`.
        login: user and password for `health`.
        after: names of the services that it needs.
        address, port, setting: where it listens, and the setting that moves it.
        second_address: another one at which it has the same port, if this machine has that address; empty: none.
        url: where a person or a program reaches it.
        files: the files that it reads, path → content.
        passing: names of variables whose change is no reason to start it anew.
        install: the program that installs it; called in `folder` once `files` are there.
    """

    name: str
    title: str
    argv: tuple[str, ...]
    folder: Path
    log: Path
    health: str
    healthy: Callable[[httpx.Response], bool] = field(compare=False)
    environment: Mapping[str, str] = field(default_factory=dict)
    inherited: Mapping[str, str] = field(default_factory=dict)
    login: tuple[str, str] | None = None
    after: tuple[str, ...] = ()
    address: str = "127.0.0.1"
    second_address: str = ""
    port: int | None = None
    setting: str = ""
    url: str = ""
    files: Mapping[Path, str] = field(default_factory=dict)
    passing: tuple[str, ...] = ()
    socket: str = ""
    install: tuple[str, ...] = ()


def written_secret(path: Path) -> str:
    """The secret in the file `path`, which no log shows."""
    secret = kept_secret(path)
    program_output.protect(secret)
    return secret


def inherited_environment() -> dict[str, str]:
    """The variables that services take over from the process that starts them."""
    return {"LANG": "C.UTF-8", **{name: os.environ[name] for name in _INHERITED if name in os.environ}}


def without_proxy(hosts: str) -> str:
    """The hosts of `no_proxy`, with this machine's loopback."""
    return ",".join(dict.fromkeys([*filter(None, hosts.split(",")), "127.0.0.1", "localhost"]))
