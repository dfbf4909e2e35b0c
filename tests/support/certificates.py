"""A certificate authority of one's own, and a certificate that it signed for this machine's loopback."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flows.core.programs import command

_NEW = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")


@dataclass(frozen=True)
class Authority:
    """PEM files: the authority's certificate, a server's certificate that it signed, and the server's key."""

    bundle: Path
    certificate: Path
    key: Path


def make_authority(folder: Path) -> Authority:
    """Make both in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    made, secret = Authority(folder / "ca.pem", folder / "server.pem", folder / "server.key"), folder / "ca.key"
    command.run([*_NEW, "-subj", "/CN=An authority of tests", "-keyout", secret, "-out", made.bundle])
    signed = ("-CA", made.bundle, "-CAkey", secret, "-addext", "basicConstraints=critical,CA:FALSE")
    names = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")
    command.run([*_NEW, *signed, *names, "-keyout", made.key, "-out", made.certificate])
    return made
