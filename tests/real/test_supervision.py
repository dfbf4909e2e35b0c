"""Services that die are there again by themselves, and what is ended stays ended."""

from __future__ import annotations

import os
import shutil
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from flows import services
from flows.core.errors import RefitError
from flows.core.programs import process_records
from flows.core.settings import Settings
from flows.services import ServiceState, doctor_home, launcher, process
from flows.services.embedded import registry
from flows.services.supervision import FOLDER, NOTES
from tests.support.processes import is_alive
from tests.support.waiting import free_port, wait_until

# Prefect's server and worker take long to start: services/test_services.py kills those that its folder has anyway.
NAMES = ("registry", "gateway", "waiting-page")


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    home = tmp_path_factory.mktemp("a home with 100% of what is odd in 'names'")
    ports = ("registry_port", "prefect_port", "gateway_port", "gateway_api_port")
    bundle = os.environ.get("SSL_CERT_FILE")
    given = {"ca_bundle": Path(bundle) if bundle else None, **{name: free_port() for name in ports}}
    made = Settings(home=home, catalog=home, **given)  # type: ignore[arg-type]
    try:
        services.up(made, only=NAMES)
        yield made
    finally:
        services.down(made)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Settings]:
    """A home of which only the registry is started."""
    made = Settings(home=tmp_path, registry_port=free_port(), prefect_port=free_port(), catalog=tmp_path, gateway=False)
    yield made
    services.down(made)


def state(settings: Settings, name: str) -> ServiceState:
    return next(each for each in services.status(settings) if each.name == name)


def supervisor(settings: Settings) -> psutil.Process:
    [noted] = process_records.noted(settings.folder("services", FOLDER) / NOTES)
    return psutil.Process(noted.pid)


@pytest.mark.parametrize("name", NAMES)
def test_a_service_that_was_killed_comes_up_again_by_itself(settings: Settings, name: str) -> None:
    before = {each.name: each.pid for each in services.status(settings)}
    killed = before[name]
    assert killed
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: state(settings, name).pid not in (None, killed))
    wait_until(lambda: state(settings, name).answering)
    after = {each.name: each.pid for each in services.up(settings, only=NAMES)}
    assert after.pop(name) != before.pop(name)
    assert after == before, "another was started anew"
    assert len(process_records.noted(settings.folder("services", name) / "processes")) == 1


def test_secrets_are_in_files_of_the_owner_alone_and_in_no_argument(settings: Settings) -> None:
    for path in settings.folder("services").rglob("*"):
        if path.name in (launcher.LAUNCH, "supervisord.conf", "socket") or path.suffix == ".ini":
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    secret = (settings.folder("services", "gateway") / "token").read_text()
    arguments = [word for each in psutil.process_iter(["cmdline"]) for word in each.info["cmdline"] or ()]
    assert arguments and not any(secret in word for word in arguments)
    assert "CONFIGPROXY_AUTH_TOKEN" not in supervisor(settings).environ()


def test_services_outlive_their_supervisor_and_up_takes_them_in_again(alone: Settings) -> None:
    assert [*doctor_home.supervisor(alone)] == []
    services.up(alone, only=["registry"])
    pid, first = state(alone, "registry").pid, supervisor(alone)
    assert [finding.ok for finding in doctor_home.supervisor(alone)] == [True]
    old = psutil.Process(pid)
    first.kill()
    first.wait()
    wait_until(lambda: state(alone, "registry").answering)
    [gone] = doctor_home.supervisor(alone)
    assert not gone.ok and "nothing starts registry again" in gone.seen and "refit up" in gone.hint
    services.up(alone, only=["registry"])
    assert state(alone, "registry").pid != pid and supervisor(alone).pid != first.pid
    assert not is_alive(old), "two registries would run"
    assert [finding.ok for finding in doctor_home.supervisor(alone)] == [True]


def test_what_was_ended_stays_ended_and_down_leaves_nothing(alone: Settings) -> None:
    services.up(alone, only=["registry"])
    kept = supervisor(alone)
    with process.alone(alone):
        assert process.end(registry(alone))
    wait_until(lambda: not kept.children())
    assert state(alone, "registry").pid is None
    assert services.down(alone) == ()
    assert process_records.noted(alone.folder("services", FOLDER) / NOTES) == ()


def test_one_that_missed_the_signal_to_end_is_not_taken_for_the_new_one(alone: Settings) -> None:
    """As one that the supervisor was starting again when `up` came: it had not noted itself, and took no signal."""
    services.up(alone, only=["registry"])
    before = state(alone, "registry").pid
    assert before
    service = registry(alone)
    shutil.rmtree(process.notes(service))
    os.kill(before, signal.SIGSTOP)
    process.start(service)
    process.wait_until_answering(service)
    wait_until(lambda: not psutil.pid_exists(before))  # it has ended, and is reaped soon
    now = state(alone, "registry").pid
    assert now and process.supervisor_of(service).keeps(now)


def test_a_service_that_fails_is_an_error_and_not_tried_for_ever(alone: Settings) -> None:
    storage = alone.home / "registry"
    storage.write_text("a file where a folder has to be")
    service = registry(alone)
    process.prepare(service)
    config = service.folder / "config.yml"
    broken = {**service.files, config: "version: 7\n"}
    failing = type(service)(**{**service.__dict__, "files": broken})
    with process.alone(alone), pytest.raises(RefitError, match="ended right after its start"):
        process.start(failing)
        process.wait_until_answering(failing)
    wait_until(lambda: not supervisor(alone).children())
