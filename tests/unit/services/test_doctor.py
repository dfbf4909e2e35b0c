"""Findings: what is judged well, what not, and what a person is told to do."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import psutil
import pytest

from flows.catalog.model import Access
from flows.core.database import open_database
from flows.core.leases import lease
from flows.core.settings import Settings
from flows.migrations.journal import Journal
from flows.migrations.move_steps import State
from flows.migrations.planning.plan import moved
from flows.services import doctor, doctor_containers, doctor_home, doctor_programs, doctor_sessions
from flows.services.doctor_findings import Finding
from flows.services.doctor_programs import Program
from flows.sessions.containers.ingress import input_rules
from flows.sessions.homes.pool import Room
from flows.sessions.model import HomeRef, Session, TokenRef
from tests.support.waiting import free_port, serving, wait_until

PODMAN = Program("podman", "runs sessions", "4.3")


@pytest.mark.parametrize(
    ("says", "ok"),
    [
        ("podman version 4.3.1", True),
        ("podman version 4.10", True),
        ("podman 3.9.9", False),
        ("?", False),
        (None, False),
    ],
)
def test_programs(says: str | None, ok: bool) -> None:
    finding = doctor_programs.judge_program(PODMAN, says)
    assert finding.ok is ok
    assert bool(finding.hint) is not ok
    assert ok or "podman" in finding.hint


def test_what_draws_the_stages_is_told_and_nothing_that_anything_else_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (finding,) = doctor_programs.pictures(Settings())
    assert finding.ok and doctor_programs.pictures not in doctor.NEEDED
    monkeypatch.setenv("PATH", str(tmp_path))
    (finding,) = doctor_programs.pictures(Settings())
    assert (finding.thing, finding.ok) == ("dot", False) and "graphviz" in finding.hint


def test_a_finding_says_how_to_mend() -> None:
    assert str(Finding("disk", True, "50 GB", "make room")) == "[ok] disk: 50 GB"
    assert str(Finding("disk", False, "1 GB", "make room")) == "[todo] disk: 1 GB\n       Hint: make room"


@pytest.mark.parametrize(("free", "ok"), [(10 * 10**9, True), (10**9, False)])
def test_disk(free: int, ok: bool) -> None:
    assert doctor_home.judge_disk(free, Path("/home")).ok is ok


def test_disk_of_a_home_that_is_not_there_yet(tmp_path: Path) -> None:
    (finding,) = doctor_home.disk(Settings(home=tmp_path / "not" / "yet"))
    assert str(tmp_path) in finding.seen


@pytest.mark.parametrize(("limit", "ok"), [(20_000, True), (1024, False)])
def test_open_files(limit: int, ok: bool) -> None:
    assert doctor_containers.judge_open_files(limit).ok is ok


@pytest.mark.parametrize(("free", "ok"), [(6 * 10**9, True), (4 * 10**9, False)])
def test_a_pool_that_is_nearly_full_is_told(free: int, ok: bool) -> None:
    assert doctor_sessions.judge_pool(Room(50 * 10**9, free)).ok is ok


def test_a_move_is_told_that_nobody_works_on_or_that_is_held(settings: Settings) -> None:
    assert not tuple(doctor_sessions.moves(settings)) and not (settings.home / "refit.db").exists()
    journal = Journal(open_database(settings.database))
    ada = Session("ada", "p", "2026a", "sha256:old", 200_000, HomeRef("/home"), TokenRef("/token"), Access())
    with lease(journal.database, "session ada") as held:
        move = journal.begin(held, ada, moved(ada, "sha256:new", None), "")
        (finding,) = doctor_sessions.moves(settings)
        assert finding.ok
    (finding,) = doctor_sessions.moves(settings)
    assert not finding.ok and "ada: interrupted" in finding.seen and "refit migrate recover" in finding.hint
    with lease(journal.database, "session ada") as held:
        journal.end(held, move, State.held, "the way back failed")
    (finding,) = doctor_sessions.moves(settings)
    assert not finding.ok and "ada: held" in finding.seen and "refit migrate history ada" in finding.hint


def test_sessions_and_homes_without_a_record_are_told(settings: Settings) -> None:
    assert not tuple(doctor_sessions.records(settings))
    assert doctor_sessions.judge_records((), ()).ok
    finding = doctor_sessions.judge_records(["ada", "bob"], ["cyd"])
    assert not finding.ok and "of ada, bob: containers" in finding.seen and "of cyd: homes" in finding.seen
    assert "refit session recover" in finding.hint


@pytest.mark.skipif(os.geteuid() != 0, reason="says something else of other users")
def test_whether_sessions_can_be_closed_is_tried_in_a_network_of_its_own() -> None:
    (finding,) = doctor_containers.ingress(Settings())
    assert finding.ok, finding
    rules = "*filter\n-F INPUT\n-A INPUT ! -i lo -p tcp -m multiport --dports 8000,2222 -j DROP\nCOMMIT\n"
    assert (input_rules([8000, 2222]), input_rules(())) == (rules, "*filter\n-F INPUT\nCOMMIT\n")


def on_ports(home: Path, port: int) -> dict[str, Finding]:
    findings = doctor_home.ports(Settings(home=home, prefect_port=port, registry_port=free_port()))
    return {finding.thing: finding for finding in findings}


@contextmanager
def listener(port: int, *words: str, address: str = "127.0.0.1") -> Iterator[int]:
    code = f"import socket, time; s = socket.create_server(('{address}', {port})); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code, *words])
    try:
        wait_until(lambda: _connects(port, address))
        yield process.pid
    finally:
        process.kill()
        process.wait()


def _connects(port: int, address: str = "127.0.0.1") -> bool:
    with socket.socket() as client:
        return client.connect_ex((address, port)) == 0


@pytest.mark.parametrize(("address", "keeps"), [("127.0.0.2", False), ("0.0.0.0", True)])
def test_a_port_is_held_by_programs_that_listen_where_refit_does(tmp_path: Path, address: str, keeps: bool) -> None:
    port = free_port()
    with listener(port, address=address):
        assert on_ports(tmp_path, port)[f"port {port}"].ok is not keeps


def test_ports_are_free_or_ours_or_somebody_elses(tmp_path: Path) -> None:
    port = free_port()
    assert on_ports(tmp_path, port)[f"port {port}"] == Finding(f"port {port}", True, "is free")
    with listener(port) as pid:
        finding = on_ports(tmp_path, port)[f"port {port}"]
        assert not finding.ok and f"pid {pid}" in finding.seen and "python" in finding.seen
        assert "REFIT_PREFECT_PORT" in finding.hint
    with listener(port, f"--config={tmp_path}/registry.yml"):
        assert on_ports(tmp_path, port)[f"port {port}"].ok


def test_a_port_is_ours_if_a_program_that_a_service_started_holds_it(tmp_path: Path) -> None:
    port = free_port()
    listens = f"import socket, time; s = socket.create_server(('127.0.0.1', {port})); time.sleep(60)"
    starts = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    service = psutil.Popen([sys.executable, "-c", starts, listens, f"--config={tmp_path}/sshd_config"])
    try:
        wait_until(lambda: _connects(port))
        assert on_ports(tmp_path, port)[f"port {port}"].ok
    finally:
        for process in [*service.children(), service]:
            process.kill()
        service.wait()


def test_an_external_registry_needs_no_port(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, registry="registry.example:5000", hub=False)
    expected = (settings.prefect_port, settings.gateway_port, settings.gateway_api_port)
    assert [finding.thing for finding in doctor_home.ports(settings)] == [f"port {port}" for port in expected]


def test_the_gateway_needs_a_node_that_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(home=tmp_path)
    (finding,) = doctor_home.gateway(settings)
    assert finding.ok and "by the first `refit up`" in finding.seen
    assert not tuple(doctor_home.gateway(settings.model_copy(update={"gateway": False})))
    monkeypatch.setattr(doctor_home, "NODE", tmp_path / "node")
    (finding,) = doctor_home.gateway(settings)
    assert not finding.ok and "REFIT_GATEWAY" in finding.hint


@contextmanager
def index(status: int, certificate: Path | None = None) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    context = None
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
    with serving(Handler, context) as port:
        yield port


def index_finding(home: Path, url: str, ca_bundle: Path | None = None) -> Finding:
    (finding,) = doctor.index(Settings(home=home, pip_index_url=url, ca_bundle=ca_bundle))
    return finding


@pytest.mark.parametrize(("status", "ok"), [(200, True), (401, False), (503, False)])
def test_an_index_that_answers(tmp_path: Path, status: int, ok: bool) -> None:
    with index(status) as port:
        finding = index_finding(tmp_path, f"http://me:hush@127.0.0.1:{port}/simple")
    assert finding.ok is ok
    assert "hush" not in str(finding)


def test_an_index_that_does_not_answer(tmp_path: Path) -> None:
    assert "doesn't answer" in index_finding(tmp_path, f"http://127.0.0.1:{free_port()}/simple").seen


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl to make a certificate")
def test_an_index_whose_authority_is_not_trusted(tmp_path: Path) -> None:
    pem = tmp_path / "authority.pem"
    request = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
    )
    files = ["-keyout", pem, "-out", tmp_path / "certificate"]
    subprocess.run([*request.split(), *files], check=True, capture_output=True)
    pem.write_text(pem.read_text() + (tmp_path / "certificate").read_text())
    with index(200, pem) as port:
        url = f"https://127.0.0.1:{port}/simple"
        finding = index_finding(tmp_path, url)
        assert not finding.ok and "REFIT_CA_BUNDLE" in finding.hint
        assert index_finding(tmp_path, url, tmp_path / "certificate").ok


def test_a_ca_bundle_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "bundle").write_text("no certificate")
    for bundle in (tmp_path / "missing", tmp_path / "bundle"):
        finding = index_finding(tmp_path, "https://127.0.0.1:1/simple", bundle)
        assert finding.thing == "CA bundle" and not finding.ok


@pytest.mark.skipif(os.geteuid() != 0, reason="says something else of other users")
def test_root(settings: Settings) -> None:
    assert [finding.ok for finding in doctor_containers.root(settings)] == [True]


def test_where_no_program_can_be_enclosed_it_says_what_follows(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    (finding,) = doctor_containers.enclosure(settings)
    assert finding.ok or os.geteuid() != 0
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: Creating new namespace failed: Operation not permitted' >&2; exit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (finding,) = doctor_containers.enclosure(settings)
    assert not finding.ok and "no session can be moved" in finding.seen and "not permitted" in finding.seen
