"""Facts that are found out by really starting containers, and one-off containers that leave nothing behind."""

from __future__ import annotations

import logging
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread, get_ident

import pytest

from flows.core.errors import RefitError
from flows.core.programs import command
from flows.core.programs.command import ProgramFailed
from flows.core.settings import Settings
from flows.host import containers, tools
from flows.host.containers import Mount
from flows.images.build import Built
from flows.services import doctor
from tests.support.machine import private_home
from tests.support.waiting import free_port, wait_until


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Settings]:
    """Settings whose home has never been used."""
    with private_home(tmp_path / "home", free_port(), used=False) as settings:
        yield settings


@pytest.fixture
def image(base: Built, shared: Settings) -> str:
    """The run's base, by its digest in the run's registry."""
    return f"docker://{shared.registry_host}/{shared.repository}/stages@{base.digest}"


def ours(settings: Settings) -> list[str]:
    return command.run([*tools.podman(settings), "ps", "--all", "--quiet"], root=True).stdout.split()


def write_program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_what_works_is_found_out_once(fresh: Settings, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "refit.command")
    facts = tools.facts(fresh)
    assert facts.runtime in tools.RUNTIMES
    assert facts.isolation in tools.ISOLATIONS
    assert not facts.network_problem
    caplog.clear()
    assert tools.facts(fresh) == facts
    assert caplog.messages == []  # no program was started for it
    assert not list(fresh.home.glob("trial-*"))
    assert ours(fresh) == []


def test_a_runtime_that_fails_is_passed_over(fresh: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_program(tmp_path / "crun", "echo 'cgroups in hybrid mode not supported' >&2; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert tools.runtime(fresh) == "runc"


def test_no_runtime_works(fresh: Settings, tmp_path: Path) -> None:
    write_program(tmp_path / "broken", "echo 'no such luck' >&2; exit 1")
    settings = fresh.model_copy(update={"oci_runtime": str(tmp_path / "broken")})
    with pytest.raises(tools.NothingWorks) as caught:
        tools.podman(settings)
    assert "no such luck" in str(caught.value) and "REFIT_OCI_RUNTIME" in caught.value.hint
    assert not (fresh.home / "host.json").exists()
    findings = {finding.thing: finding for finding in doctor.examine(settings)}
    assert not findings["containers"].ok and "no such luck" in findings["containers"].seen


def test_another_boot_forgets_what_was_true_until_then(fresh: Settings) -> None:
    facts = tools.facts(fresh)
    stale = tools.runtime_folder(fresh) / "stale"
    stale.touch()
    file = fresh.home / "host.json"
    file.write_text(file.read_text().replace(facts.boot, "an-earlier-boot"))
    assert tools.facts(fresh) == facts
    assert not stale.exists()


def test_the_doctor_finds_this_machine_well(fresh: Settings) -> None:
    findings = doctor.examine(fresh)
    ours = {"runtime", "network", "open files", "overlay", "podman", "buildah", "root", "Python"}
    assert ours <= {finding.thing for finding in findings if finding.ok}


def test_a_program_runs_once_and_nothing_stays(shared: Settings, image: str, tmp_path: Path) -> None:
    for name in ("in", "out"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o777)
    (tmp_path / "in" / "note").write_text("from outside\n")
    script = "id -u; cat /in/note; cat; echo $SECRET > /out/secret; ! touch /in/more; grep CapEff /proc/self/status"
    done = containers.run_once(
        shared,
        image,
        ["sh", "-c", script],
        mounts=[Mount(tmp_path / "in", "/in"), Mount(tmp_path / "out", "/out", writable=True)],
        env={"SECRET": "hush"},
        stdin="from stdin\n",
    )
    assert done.stdout == "65534\nfrom outside\nfrom stdin\nCapEff:\t0000000000000000\n"
    assert (tmp_path / "out" / "secret").read_text() == "hush\n"
    assert "hush" not in " ".join(done.argv)
    assert ours(shared) == []


def test_nothing_stays_of_failures_and_of_what_takes_too_long(shared: Settings, image: str) -> None:
    with pytest.raises(ProgramFailed, match="exit code 7"):
        containers.run_once(shared, image, ["sh", "-c", "echo why >&2; exit 7"])
    assert containers.run_once(shared, image, ["sh", "-c", "exit 7"], accepted=(0, 7)).exit_code == 7
    with pytest.raises(ProgramFailed, match="took longer"):
        containers.run_once(shared, image, ["sleep", "1000"], limit=2)
    with pytest.raises(ProgramFailed):
        containers.run_once(shared, image, ["surely-not-a-program"])
    assert ours(shared) == []


def test_an_image_that_is_not_there(shared: Settings, image: str) -> None:
    with pytest.raises(ProgramFailed):
        containers.run_once(shared, f"{image[:-1]}{'0' if image[-1] != '0' else '1'}", ["true"])
    with pytest.raises(RefitError):
        containers.run_once(shared, "localhost/surely-not:there", ["true"])


def test_cancelling_leaves_nothing(shared: Settings, image: str) -> None:
    def interrupt() -> None:
        wait_until(lambda: ours(shared))
        signal.pthread_kill(main, signal.SIGINT)

    main = get_ident()
    thread = Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        containers.run_once(shared, image, ["sleep", "1000"])
    thread.join()
    assert ours(shared) == []


def test_what_a_killed_process_left_is_removed_by_the_next(shared: Settings, image: str) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from flows.host import containers; from flows.core.settings import Settings\n"
        "containers.run_once(Settings(home=Path(sys.argv[1]), registry=sys.argv[2]), sys.argv[3], ['sleep', '1000'])"
    )
    words = [sys.executable, "-c", code, shared.home, shared.registry_host, image]
    process = subprocess.Popen(words, start_new_session=True)
    try:
        wait_until(lambda: ours(shared))
        assert containers.remove_orphans(shared) == ()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert ours(shared) != []
    containers.run_once(shared, image, ["true"])
    assert ours(shared) == []
