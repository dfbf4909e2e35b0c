"""Host certificates with real OpenSSH: one line in `known_hosts` holds for sessions that come later."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from flows.core.programs import command
from flows.core.settings import Settings
from flows.sessions.ssh import host_certificates
from flows.sessions.ssh.host_certificates import CERTIFICATE, HostCertificates

NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="files of sessions are root's")


@pytest.fixture
def authority(tmp_path: Path) -> HostCertificates:
    return HostCertificates(Settings(home=tmp_path / "home"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a session that has a host key."""
    folder = tmp_path / "session"
    folder.mkdir()
    command.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "host_key"])
    return folder


def told(certificate: Path) -> str:
    return subprocess.run(["ssh-keygen", "-L", "-f", certificate], capture_output=True, text=True, check=True).stdout


@NEEDS_ROOT
def test_a_certificate_names_one_session_and_is_of_the_authority(authority: HostCertificates, folder: Path) -> None:
    authority.sign("ada", folder)
    text = told(folder / CERTIFICATE)
    assert "host certificate" in text and authority.authority().fingerprint in text
    principals = text.partition("Principals:")[2].partition("Critical")[0].split()
    assert principals == ["ada.refit"] and "forever" not in text
    assert sorted(path.name for path in folder.iterdir()) == sorted(["host_key", "host_key.pub", CERTIFICATE])


@NEEDS_ROOT
def test_a_certificate_is_made_anew_when_it_is_old_or_the_key_is_another(
    authority: HostCertificates, folder: Path
) -> None:
    certificate, public = folder / CERTIFICATE, folder / "host_key.pub"
    authority.sign("ada", folder)
    first = certificate.read_text()
    authority.sign("ada", folder)
    assert certificate.read_text() == first
    aged = certificate.stat().st_mtime - (host_certificates.RENEWED_AFTER_DAYS + 1) * 86_400
    os.utime(certificate, (aged, aged))
    os.utime(public, (aged - 1, aged - 1))
    authority.sign("ada", folder)
    second = certificate.read_text()
    assert second != first
    (folder / "host_key").unlink()
    command.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "host_key"])
    later = certificate.stat().st_mtime + 10
    os.utime(public, (later, later))
    authority.sign("ada", folder)
    assert certificate.read_text() != second


@NEEDS_ROOT
def test_no_host_key_has_no_certificate(authority: HostCertificates, tmp_path: Path) -> None:
    authority.sign("ada", tmp_path)
    assert not (tmp_path / CERTIFICATE).exists()


@NEEDS_ROOT
def test_the_authority_stays_and_its_private_key_is_nobody_elses(authority: HostCertificates, tmp_path: Path) -> None:
    key = authority.authority()
    assert HostCertificates(Settings(home=tmp_path / "home")).authority() == key
    [private] = (tmp_path / "home").rglob("authority/authority")
    assert private.stat().st_mode & 0o077 == 0
