import configparser
import json
import os
import shlex
import socket
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flows import services
from flows.core import settings
from flows.core.errors import RefitError
from flows.core.programs import process_records, spawn
from flows.core.settings import Settings, environment
from flows.host import jump_enclosure, user_namespace
from flows.services import doctor_programs, embedded, prefect_services, process, reset, systemd, tickets
from tests.support.waiting import PATIENCE, free_port, wait_until


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"REFIT_{name.upper()}", raising=False)


def read(unit: str) -> configparser.ConfigParser:
    parser = configparser.RawConfigParser(strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(unit)
    return parser


def test_the_registry_of_somebody_else_is_not_started(tmp_path: Path) -> None:
    assert [service.name for service in embedded.all_services(Settings(home=tmp_path, hub=False))] == [
        "registry",
        "prefect",
        "worker",
        "gateway",
        "waiting-page",
    ]
    elsewhere = Settings(home=tmp_path, hub=False, registry="registry.example:5000")
    assert [service.name for service in embedded.all_services(elsewhere)] == [
        "prefect",
        "worker",
        "gateway",
        "waiting-page",
    ]
    assert "refit-registry" not in services.units(elsewhere)["refit-worker.service"]


def test_a_machine_that_builds_for_another_has_a_worker_of_that_one_alone(tmp_path: Path) -> None:
    elsewhere = Settings(
        home=tmp_path, registry="registry.example:5000", prefect_server="http://one.example:4200", machine="two"
    )
    [worker] = embedded.all_services(elsewhere)
    assert worker.name == "worker" and worker.after == ()
    assert worker.environment["PREFECT_API_URL"] == "http://one.example:4200/api"
    assert worker.environment["REFIT_MACHINE"] == "two"


def test_the_registry_stays_on_loopback_whatever_the_server_listens_on(tmp_path: Path) -> None:
    registry = embedded.registry(Settings(home=tmp_path, bind_address="0.0.0.0", registry_port=5123))
    assert '"127.0.0.1:5123"' in json.dumps([config.split() for config in registry.files.values()]).replace("'", "")


@pytest.mark.parametrize("word", ["command", "env", "working_dir"])
def test_the_base_job_template_takes_nothing(word: str) -> None:
    assert word not in json.dumps(prefect_services.BASE_JOB_TEMPLATE)
    assert prefect_services.BASE_JOB_TEMPLATE["variables"]["additionalProperties"] is False


def test_another_process_loads_the_same_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    chosen = Settings.model_validate(
        {
            "home": tmp_path,
            "catalog": tmp_path / "a catalog",
            "registry_port": 5123,
            "registry_password": "pass: word",
            "registry_tls": False,
            "session_uids": {"first": 5, "last": 9},
            "wheel_folders": ["/a", "/b c"],
            "ca_bundle": __file__,
            "stop_grace_seconds": 2.5,
        }
    )
    for name, value in environment.variables(chosen).items():
        monkeypatch.setenv(name, value)
    assert settings.load() == chosen


@pytest.mark.parametrize("listen", ["127.0.0.1", "0.0.0.0"])
def test_the_login_of_prefect_is_made_up_once_or_is_the_chosen_one(tmp_path: Path, listen: str) -> None:
    here = Settings(home=tmp_path, bind_address=listen)
    made_up = services.prefect_environment(here)["PREFECT_API_AUTH_STRING"]
    assert services.prefect_environment(here)["PREFECT_API_AUTH_STRING"] == made_up
    assert made_up.startswith("refit:") and len(made_up) > 30
    assert (tmp_path / "services/prefect/password").stat().st_mode & 0o777 == 0o600
    chosen = Settings.model_validate({"home": tmp_path, "auth": "ada:love:lace", "bind_address": listen})
    assert services.prefect_login(chosen) == ("ada", "love:lace")
    server = prefect_services.prefect(chosen)
    assert server.environment["PREFECT_SERVER_API_AUTH_STRING"] == "ada:love:lace"
    assert server.environment["PREFECT_SERVER_CSRF_PROTECTION_ENABLED"] == "true"
    assert "lace" not in " ".join(server.argv)


def test_no_login_is_made_up_for_a_server_elsewhere(tmp_path: Path) -> None:
    elsewhere = Settings(home=tmp_path, prefect_server="http://one.example:4200")
    assert services.prefect_login(elsewhere) is None
    assert "PREFECT_API_AUTH_STRING" not in services.prefect_environment(elsewhere)
    assert tickets.link(elsewhere) == "http://one.example:4200"


def test_a_ticket_lets_in_once_and_for_some_minutes(tmp_path: Path) -> None:
    ticket, other = tickets.make(tmp_path / "tickets"), tickets.make(tmp_path / "tickets")
    files = {file: file.stat().st_mode & 0o777 for file in (tmp_path / "tickets").iterdir()}
    assert set(files.values()) == {0o600} and ticket not in str(files)
    assert (tmp_path / "tickets").stat().st_mode & 0o777 == 0o700
    for wrong in ("", "../tickets", ticket[:-1], f"{ticket}x"):
        assert not tickets.take(tmp_path / "tickets", wrong)
    assert tickets.take(tmp_path / "tickets", ticket)
    assert not tickets.take(tmp_path / "tickets", ticket)
    [left] = (tmp_path / "tickets").iterdir()
    os.utime(left, (0, left.stat().st_mtime - 60 * tickets.MINUTES))
    assert not tickets.take(tmp_path / "tickets", other)
    assert not list((tmp_path / "tickets").iterdir())


def test_old_tickets_are_removed_when_one_is_made(tmp_path: Path) -> None:
    tickets.make(tmp_path)
    [old] = tmp_path.iterdir()
    os.utime(old, (0, 0))
    tickets.make(tmp_path)
    assert old not in list(tmp_path.iterdir())


def test_a_link_opens_the_ui_of_the_embedded_server(tmp_path: Path) -> None:
    here = Settings(home=tmp_path, prefect_port=4321)
    address, _, ticket = tickets.link(here).partition("#")
    assert address == "http://127.0.0.1:4321/refit/login"
    assert tickets.take(prefect_services.prefect(here).folder / embedded.TICKETS, ticket)


def test_a_proxy_of_the_shell_is_not_used_on_loopback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "example.org")
    assert services.prefect_environment(Settings(home=tmp_path))["NO_PROXY"] == "example.org,127.0.0.1,localhost"


def test_units_start_in_order_and_hold_no_secret(tmp_path: Path) -> None:
    chosen = Settings.model_validate({"home": tmp_path / "50% $home", "auth": "ada:lovelace", "jump_port": 0})
    units = services.units(chosen)
    names = ("registry", "prefect", "worker", "gateway", "waiting-page", "hub", "authorizer", "my-sessions")
    assert list(units) == [f"refit-{name}.service" for name in names]
    assert (chosen.home / "services/gateway/token").read_text() not in "".join(units.values())
    assert "lovelace" not in "".join(units.values())
    worker = read(units["refit-worker.service"])
    assert worker["Unit"]["After"] == "network.target refit-registry.service refit-prefect.service"
    assert worker["Service"]["Type"] == "exec"
    assert worker["Service"]["Restart"] == "on-failure"
    words = shlex.split(worker["Service"]["ExecStart"].replace("$$", "$").replace("%%", "%"), posix=True)
    assert tuple(words) == prefect_services.worker(chosen).argv


def test_what_systemd_reads_is_what_up_gives(tmp_path: Path) -> None:
    server = prefect_services.prefect(Settings.model_validate({"home": tmp_path, "auth": 'a:b"\\c'}))
    process.prepare(server)
    lines = (server.folder / "environment").read_text().splitlines()
    read_back = {name: json.loads(value) for name, _, value in (line.partition("=") for line in lines)}
    assert read_back == {**server.inherited, **server.environment}
    assert (server.folder / "environment").stat().st_mode & 0o777 == 0o600


def test_a_reboot_makes_notes_stale(tmp_path: Path) -> None:
    registry = embedded.registry(Settings(home=tmp_path))
    note = registry.folder / "processes" / str(os.getpid())
    note.parent.mkdir()
    note.write_text("another-boot 123\n")
    assert process.find(registry) is None
    assert not process.end(registry)
    assert not note.exists()


def test_a_word_is_quoted_as_systemd_reads_it() -> None:
    assert [systemd._quoted(word) for word in ("/plain", "a b", "50%", 'a"b')] == [
        "/plain",
        '"a b"',
        '"50%%"',
        '"a\\"b"',
    ]


def test_a_service_is_installed_once_for_each_lock_and_says_what_to_do_if_it_cant_be(tmp_path: Path) -> None:
    gateway = embedded.gateway(Settings(home=tmp_path))
    gateway = replace(gateway, install=("sh", "-c", "echo again >>times"))
    process.prepare(gateway)
    process.prepare(gateway)
    assert (gateway.folder / "times").read_text() == "again\n"
    newer = replace(gateway, files={gateway.folder / "package-lock.json": "{}"})
    process.prepare(newer)
    assert (gateway.folder / "times").read_text() == "again\nagain\n"
    with pytest.raises(RefitError, match="can't be installed") as failed:
        process.prepare(replace(gateway, install=("sh", "-c", "echo no way out; exit 1")))
    assert "no way out" in str(failed.value) and "gateway: false" in str(failed.value)


def test_the_gateway_is_installed_as_locked_and_runs_nothing_of_its_packages(tmp_path: Path) -> None:
    service = embedded.gateway(Settings(home=tmp_path, npm_registry="https://npm.example/"))
    assert {"ci", "--ignore-scripts", "--registry=https://npm.example/"} <= set(service.install)
    lock = json.loads(service.files[service.folder / "package-lock.json"])
    packages = [package for name, package in lock["packages"].items() if name]
    assert packages and all(package["integrity"].startswith("sha512-") for package in packages)
    assert all(package["resolved"].startswith("https://registry.npmjs.org/") for package in packages)
    assert service.environment["CONFIGPROXY_AUTH_TOKEN"] not in " ".join(service.argv)


@pytest.mark.slow
def test_services_that_run_but_are_slow_are_waited_for_and_those_that_ended_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [ended, *_] = services.status(Settings(home=tmp_path))
    slow = replace(ended, running=True)
    looks = iter([slow, slow, replace(slow, answering=True)])
    monkeypatch.setattr(services, "status", lambda _: (next(looks),))
    services.require(Settings(home=tmp_path))
    assert next(looks, None) is None
    monkeypatch.setattr(services, "status", lambda _: (ended,))
    with pytest.raises(RefitError, match="does not answer"):
        services.require(Settings(home=tmp_path))


def test_the_login_of_the_registry_is_made_up_once_or_is_the_chosen_one(tmp_path: Path) -> None:
    here = Settings(home=tmp_path / "home")
    assert here.registry_login == ("", "")
    made = embedded.registry(here)
    assert made.login == here.registry_login and len(here.registry_login[1]) >= 32
    process.prepare(made)
    assert embedded.registry(here).files == made.files
    chosen = Settings.model_validate({"home": tmp_path / "home", "registry_user": "ada", "registry_password": "word"})
    users = made.folder / embedded.HTPASSWD
    assert embedded.registry(chosen).login == ("ada", "word") != here.registry_login
    assert embedded.registry(chosen).files[users].startswith("ada:$2b$") and "word" not in str(made.files.values())
    elsewhere = Settings(home=tmp_path / "home", registry="registry.example")
    assert elsewhere.registry_login == ("", "")
    long = Settings.model_validate({"home": tmp_path / "x", "registry_user": "ada", "registry_password": "é" * 37})
    with pytest.raises(RefitError, match="can't be the embedded"):
        embedded.registry(long)


def test_a_registry_for_reading_is_started_where_a_port_is_chosen(tmp_path: Path) -> None:
    here = Settings(home=tmp_path, registry_read_port=5011)
    registry, reader, *_ = embedded.all_services(here)
    [config] = reader.files.values()
    assert (registry.name, reader.name, reader.login) == ("registry", "reader", None)
    assert "readonly" in config and "htpasswd" not in config and "127.0.0.1:5011" in config


def test_nothing_is_started_beside_a_database_that_cant_be_opened(tmp_path: Path) -> None:
    home = tmp_path / "home"
    chosen = Settings(home=home, database_url=f"sqlite:///{tmp_path / 'old.db'}")
    with closing(sqlite3.connect(tmp_path / "old.db")) as old, old:
        old.execute("CREATE TABLE alembic_version (version_num VARCHAR)")
        old.execute("INSERT INTO alembic_version VALUES ('0007')")
    with pytest.raises(RefitError, match="before the first release"):
        services.up(chosen)
    assert not any(state.running for state in services.status(chosen))


def test_a_service_that_is_at_work_for_minutes_is_not_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, waited = iter([False, False, True]), list[float]()

    def look_thrice(look: Callable[[], bool], *, seconds: float) -> bool:
        waited.append(seconds)
        return any(look() for _ in range(3))

    monkeypatch.setattr(process, "wait_until", look_thrice)
    monkeypatch.setattr(process, "answers", lambda _: next(answers))
    monkeypatch.setattr(process, "find", lambda _: "it runs")
    process.wait_until_answering(prefect_services.prefect(Settings(home=tmp_path)))
    assert next(answers, None) is None and waited[0] >= 600


def test_by_default_there_is_a_hub_and_ssh_from_elsewhere_as_far_as_its_programs_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def names(**chosen: Any) -> set[str]:
        return {one.name for one in embedded.all_services(Settings(home=tmp_path, **chosen))}

    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(embedded, "_SSHD", tmp_path / "sshd")
    assert {"hub", "authorizer", "my-sessions"} <= names() and not {"jump", "forwarder"} & names()
    assert {"jump", "forwarder"} <= names(hub=True)
    (tmp_path / "sshd").touch()
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert "jump" not in names()
    monkeypatch.setattr("shutil.which", str)
    assert {"jump", "forwarder"} <= names()


@pytest.mark.parametrize(("uid", "port", "there"), [(0, 17903, True), (0, 0, False), (1000, 17903, False)])
def test_the_way_in_by_ssh_is_there_with_a_hub_and_comes_after_the_forwarder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: int, port: int, there: bool
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: uid)
    names = [one.name for one in embedded.all_services(Settings(home=tmp_path, hub=True, jump_port=port))]
    assert ("jump" in names, "forwarder" in names) == (there, there)
    assert not there or names.index("forwarder") < names.index("jump")
    without = embedded.all_services(Settings(home=tmp_path / "other", hub=False, jump_port=port))
    assert "jump" not in [one.name for one in without]


@pytest.mark.parametrize("why", ["", "bwrap isn't installed."])
def test_an_ordinary_user_has_the_way_in_where_they_ask_for_it_and_its_trial_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(jump_enclosure, "lack", lambda _: why)
    monkeypatch.setattr(user_namespace, "uid", lambda: user_namespace.Uid(10, 500_009))
    asked, unasked = (Settings(home=tmp_path, hub=hub) for hub in (True, None))
    names = [one.name for one in embedded.all_services(asked)]
    assert ("jump" in names, "forwarder" in names) == (not why, not why)
    assert embedded.no_way_in(asked) == why and embedded.no_way_in(unasked) == ""
    assert embedded.no_way_in(Settings(home=tmp_path, hub=True, jump_port=0)) == ""
    assert "jump" not in [one.name for one in embedded.all_services(unasked)]
    (finding, *_) = doctor_programs.jump(asked)
    assert finding.ok == (not why) and (finding.seen == why or not why)


@pytest.mark.parametrize("taken", ["127.0.0.1", "::1"])
def test_a_neighbour_at_either_address_keeps_a_service_from_starting_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: str
) -> None:
    monkeypatch.setattr(process, "LET_GO_SECONDS", 0.05)
    family = socket.AF_INET6 if ":" in taken else socket.AF_INET
    with socket.create_server((taken, 0), family=family) as neighbour:
        port = neighbour.getsockname()[1]
        service = replace(
            embedded.gateway(Settings(home=tmp_path)), second_address="::1", port=port, setting="gateway_port"
        )
        with pytest.raises(RefitError, match=f"Port {port} is taken"):
            process.refuse_taken_port(service)


def test_an_address_that_this_machine_lacks_is_no_obstacle_where_it_is_the_second_one(tmp_path: Path) -> None:
    port = free_port()
    process.refuse_taken_port(
        replace(embedded.gateway(Settings(home=tmp_path)), second_address="2001:db8::7", port=port)
    )
    with pytest.raises(RefitError, match="bind_address"):
        process.refuse_taken_port(replace(embedded.gateway(Settings(home=tmp_path)), address="2001:db8::7", port=port))


@pytest.mark.parametrize("way", ["down", "reset"])
def test_a_service_that_the_settings_ask_for_no_longer_is_ended_as_well(tmp_path: Path, way: str) -> None:
    chosen = Settings(home=tmp_path, hub=False, jump_port=0)
    folder = chosen.folder("services", "jump")
    notes = folder / "processes"
    spawn.start(["sleep", "1000"], env=dict(os.environ), cwd=folder, log=folder / "log", notes=notes)
    wait_until(lambda: process_records.noted(notes), 10 * PATIENCE)
    [noted] = process_records.noted(notes)
    assert "jump" not in [one.name for one in embedded.all_services(chosen)]
    if way == "down":
        assert services.down(chosen) == ("jump",) and services.down(chosen) == ()
    else:
        reset.reset(chosen, ["services"])
        assert not folder.exists()
    assert not noted.alive
