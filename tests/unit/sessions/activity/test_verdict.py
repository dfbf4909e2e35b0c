"""Verdicts on what was seen; among it traces of what doesn't run here."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from flows.catalog.load import load_catalog
from flows.sessions.activity.evidence import Activity, Look, Memory, Process, Verdict, unknown
from flows.sessions.activity.verdict import PROBE, judge, on_clock, remembered
from tests.support.activity.looks import BEGAN, HOUR, INIT, MAIN, NOW, at, in_terminal, kernel, process, seen
from tests.support.machine import ROOT

KERNEL = process(50, "python", "-m", "ipykernel_launcher", "-f", "/r/kernel-1234abcd-0.json", started=NOW - 50_000)


def test_without_anything_a_session_is_idle_since_it_began() -> None:
    activity = seen()
    assert (activity.verdict, activity.used) == (Verdict.idle, at(BEGAN))
    assert "jupyter-lab" in activity.reasons[0]


def test_evidence_says_what_works_how_hard_and_where() -> None:
    activity = seen(process(812, "python", "train.py", cpu=0.93), in_terminal(9, "nano", "x"))
    assert activity.verdict is Verdict.busy
    assert activity.reasons == ("runs: python train.py, 93% CPU, pid 812",)
    assert [str(one.says) for one in activity.evidence] == ["busy", "idle with state", "idle"]


@pytest.mark.parametrize(
    "argv",
    [
        ("curl", "https://ana:hunter2@example.org/x"),
        ("psql", "--password=hunter2"),
        ("tool", "--api-key", "hunter2"),
        ("env", "TOKEN=hunter2", "tool"),
    ],
)
def test_no_secret_of_a_command_line_gets_into_evidence(argv: tuple[str, ...]) -> None:
    (said,) = seen(process(9, *argv)).reasons
    assert "hunter2" not in said and "***" in said and argv[0] in said


@pytest.mark.parametrize(
    "one",
    [
        process(9, "sleep", "900"),
        process(9, "sshd: dev@notty", moved=5000.0),
        process(9, "python3", "/home/dev/langserver-experiment.py"),
        process(9, "pylsp", cpu=0.9),
        process(9, "pylsp", cpu=0.1, waited=0.6),
        process(9, "pylsp", moved=50_000_000.0),
        process(9, "python3", "-c", "import pylsp"),
        in_terminal(9, "pylsp", waits="other"),
        in_terminal(9, "bash", "build.sh", waits="other"),
        in_terminal(9, "bash", "-lc", "make", waits="child"),
        in_terminal(9, "sh", "-c", "make", waits="child"),
        in_terminal(9, "bash", stdin="pipe:[1]", waits="pipe"),
        in_terminal(9, "bash", cpu=0.9),
        in_terminal(9, "bash", foregrounds=(9, 4711)),
        in_terminal(9, "nano", "x", foregrounds=(8,)),
        in_terminal(9, "python3", "work.py", waits="other"),
        in_terminal(9, "python3", stdin="pipe:[1]", waits="pipe"),
        in_terminal(9, "psql", waits="other"),
        process(9, "./a.out", state="t"),
        process(9, "./a.out", state="D"),
        process(9, "python3", "-I", "-", "8888"),
        process(9, "python3", "-I", "-", parent=0),
        process(9, *PROBE, parent=0),
        process(9, "make", parent=0),
    ],
    ids=str,
)
def test_what_has_no_harmless_explanation_is_busy(one: Process) -> None:
    assert seen(one).verdict is Verdict.busy


@pytest.mark.parametrize(
    "one",
    [
        in_terminal(9, "-bash"),
        in_terminal(9, "/usr/bin/zsh", "-i"),
        in_terminal(9, "bash", "--init-file", "/x/shellIntegration-bash.sh"),
        in_terminal(9, "sh", "-c", "bash"),
        in_terminal(9, "-sh", waits="line"),
        process(9, "ssh-agent", "-s"),
        process(9, "/usr/bin/python3", "/usr/bin/pylsp"),
        process(9, "node", "--max-old-space-size=3072", "/x/pyright-langserver.js", "--stdio"),
        process(9, "python", "-c", "from multiprocessing.resource_tracker import main;main(5)"),
        process(9, "sshd: /usr/sbin/sshd [listener] 0 of 10-100 startups"),
        process(9, "tmux", "new", name="tmux: server"),
        process(9, "defunct", state="Z"),
        process(9, "sh", "/etc/cron-like", session=1, started=BEGAN + 2),
    ],
    ids=str,
)
def test_what_waits_for_others_is_idle(one: Process) -> None:
    assert seen(one).verdict is Verdict.idle


def test_an_ssh_connection_with_a_program_is_work_and_a_tunnel_that_carries_nothing_is_not() -> None:
    login = process(9, "sshd: dev@notty")
    assert seen(login, process(10, "sftp-server", parent=9)).verdict is Verdict.busy
    assert "a tunnel" in seen(login).reasons[0]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"waited": 0.9}, Verdict.idle),
        ({"cpu": 0.02, "waited": 0.9, "restless": 0.6}, Verdict.idle),
        ({"cpu": 0.02, "waited": 0.97, "restless": 0.99}, Verdict.busy),
        ({"cpu": 0.3}, Verdict.busy),
    ],
)
def test_a_host_without_free_cores_makes_no_work_of_what_only_waits_for_one(
    more: dict[str, Any], says: Verdict
) -> None:
    activity = judge(Look(NOW, (INIT, replace(MAIN, **more))))
    assert activity.verdict is says
    assert says is Verdict.idle or activity.reasons[0].startswith("computes: ")


def test_what_a_script_of_the_image_does_is_the_images_and_what_the_ide_starts_later_is_not() -> None:
    script = process(9, "sh", "-c", "while sleep 60; do tidy; done", session=1, started=BEGAN + 1)
    assert seen(script, process(10, "tidy", parent=9, session=1)).verdict is Verdict.idle
    assert seen(script, process(10, "make", parent=7, session=1)).verdict is Verdict.busy


@pytest.mark.parametrize(
    ("more", "says", "because"),
    [
        (kernel("busy"), Verdict.busy, "kernel python3 1234abcd is busy"),
        (kernel("restarting"), Verdict.busy, "is restarting"),
        (kernel("dead"), Verdict.idle, "has died"),
        (kernel("starting", used=50), Verdict.busy, "is starting"),
        (kernel("starting", used=50_000), Verdict.idle, "was never used"),
        (kernel(used=50), Verdict.busy, "was used 50 s ago"),
        (kernel(used=50_000), Verdict.idle, "was never used"),
        (kernel(used=50_000, variables=None), Verdict.state, "may hold something"),
        (kernel(used=50_000, variables=("x",)), Verdict.state, "holds x"),
        (kernel(), Verdict.state, "may hold something"),
        (kernel(variables=None), Verdict.state, "may hold something"),
        (kernel(variables=tuple("abcde")), Verdict.state, "holds a, b, c and 2 more"),
    ],
)
def test_kernels(more: dict[str, Any], says: Verdict, because: str) -> None:
    activity = seen(KERNEL, **more)
    assert activity.verdict is says
    assert any(because in reason for reason in activity.reasons)


def test_a_kernel_works_on_after_its_cell_by_itself_or_by_a_copy_of_itself() -> None:
    copy = process(51, *KERNEL.argv, parent=50)
    assert seen(KERNEL, copy, **kernel()).reasons == (f"runs: {copy}",)
    threads = process(50, *KERNEL.argv, cpu=1.0)
    assert seen(threads, **kernel()).verdict is Verdict.busy
    daemon = process(51, *KERNEL.argv, parent=1)
    assert seen(KERNEL, daemon, **kernel()).reasons == (f"runs: {daemon}",)


@pytest.mark.parametrize(
    ("threads", "says"),
    [
        (("any", "lock", "pipe", "pipe", "sleep"), Verdict.state),
        (("pipe", "pipe", "pipe"), Verdict.busy),
        (("any", "lock", "any", "sleep", "sleep"), Verdict.busy),
        (("any", "lock", "any", "sleep", "other"), Verdict.busy),
    ],
)
def test_a_thread_that_outlives_its_cell_is_work_and_those_of_the_kernel_are_not(
    threads: tuple[str, ...], says: Verdict
) -> None:
    assert seen(replace(KERNEL, threads=threads), **kernel()).verdict is says


@pytest.mark.parametrize(
    ("more", "because"),
    [
        ({"problems": ("Jupyter: TimeoutError",)}, "not known: Jupyter"),
        ({"network": 3e6}, "3.0 MB/s"),
        ({"gpu": 0.93}, "93%"),
        ({"gpu": None, "problems": ("the GPU: there is no nvidia-smi",)}, "not known: the GPU"),
        ({"terminals": {"/dev/pts/3": NOW - 40}}, "somebody typed in pts/3 40 s ago"),
        ({"saved": NOW - 130}, "a document was saved 2 min ago"),
        ({"heartbeat": NOW - 10}, "the IDE was used 10 s ago"),
        ({"hold": (NOW - 3600, "8h training")}, "its owner holds it for 7 h: training"),
        ({"hold": (NOW - 3600, "until I am back")}, "its owner holds it for 23 h: until I am back"),
        ({"hold": (NOW - 86_000, "")}, "its owner holds it for 7 min"),
    ],
)
def test_any_sign_of_work_wins_and_what_is_not_known_is_one(more: dict[str, Any], because: str) -> None:
    activity = seen(**more)
    assert activity.verdict is Verdict.busy
    assert any(because in reason for reason in activity.reasons)


@pytest.mark.parametrize("hold", [(NOW - 3600, "30m training"), (NOW - 86_400, ""), (NOW - 90_000, "soon")])
def test_a_hold_that_was_forgotten_keeps_nobody(hold: tuple[float, str]) -> None:
    activity = seen(hold=hold)
    assert activity.verdict is Verdict.idle
    assert any("its hold has ended" in str(one) for one in activity.evidence)


@pytest.mark.parametrize(("after", "verdict"), [(5.0, Verdict.idle), (29.0, Verdict.idle), (31.0, Verdict.busy)])
def test_an_ide_that_was_asked_whether_it_works_is_not_used(after: float, verdict: Verdict) -> None:
    main = Process(7, 1, ("/opt/ide/bin/code-server",), started=NOW - 100, session=1)
    assert judge(Look(NOW, (main,), heartbeat=NOW - 100 + after)).verdict is verdict


def test_a_tab_that_stays_open_says_nothing() -> None:
    activity = seen(connections=2, terminals={"/dev/pts/3": NOW - 3600}, heartbeat=NOW - 3600, network=800.0)
    assert (activity.verdict, activity.used) == (Verdict.idle, at(NOW - 3600))


@pytest.mark.parametrize("server", ["sshd", "sshd-session"])
def test_an_ssh_login_counts_as_long_as_somebody_types_now_and_then(server: str) -> None:
    login = process(9, f"{server}: dev@pts/4")
    assert seen(login, terminals={"/dev/pts/4": NOW - 60}).verdict is Verdict.busy
    assert seen(login, terminals={"/dev/pts/4": NOW - 6000}).verdict is Verdict.state
    assert seen(login).verdict is Verdict.busy


# --- VS Code's server, which doesn't run here: after the process lists in microsoft/vscode-remote-release#262 and #635

_BIN = "/home/dev/.vscode-server/bin/8b3775030ed1a69b13e4f4c628c612102e30a681"
SERVER = (
    process(20, "sh", f"{_BIN}/bin/code-server", "--port=0", "--without-connection-token", parent=1),
    process(21, f"{_BIN}/node", f"{_BIN}/out/server-main.js", "--port=0", parent=20, session=20, cpu=0.01),
    process(22, f"{_BIN}/node", f"{_BIN}/out/bootstrap-fork", "--type=ptyHost", parent=21, session=20),
    process(23, f"{_BIN}/node", f"{_BIN}/out/bootstrap-fork", "--type=extensionHost", parent=21, session=20, cpu=0.02),
    process(24, f"{_BIN}/node", f"{_BIN}/out/bootstrap-fork", "--type=fileWatcher", parent=21, session=20),
    process(
        25, f"{_BIN}/node", "/x/ms-python.vscode-pylance/dist/server.bundle.js", "--node-ipc", parent=23, session=20
    ),
    in_terminal(26, "/bin/bash", "--init-file", f"{_BIN}/out/shellIntegration-bash.sh", parent=22),
)
VSCODE = ("code-server", "server-main.js", "bootstrap-fork", "server.bundle.js")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ((), Verdict.idle),
        ((in_terminal(30, "npm", "run", "watch", parent=26, waits="any"),), Verdict.busy),
        ((process(30, "python", "-m", "pytest", parent=23, session=20),), Verdict.busy),
        ((process(30, "/bin/sh", "-c", "make", parent=23, session=20),), Verdict.busy),
        (
            (in_terminal(26, "/bin/bash", parent=22, foregrounds=(31,)), in_terminal(31, "sleep", "9", waits="sleep")),
            Verdict.busy,
        ),
    ],
    ids=["a window open overnight", "a task in a terminal", "tests of an extension", "a build", "a job in a terminal"],
)
def test_vs_codes_server(more: tuple[Process, ...], says: Verdict) -> None:
    assert seen(*SERVER, *more, helpers=VSCODE).verdict is says
    assert seen(*SERVER, *more).verdict is Verdict.busy, "only a profile that names its IDE's programs knows them"


# --- RStudio's server, as the catalog has it

RSERVER = process(20, "/usr/lib/rstudio-server/bin/rserver", "--server-daemonize=0")


def test_rstudios_server_is_a_helper_and_the_r_of_a_person_is_none() -> None:
    helpers = load_catalog(ROOT).ides["rstudio"].config.access.helpers
    r = process(30, "/usr/lib/rstudio-server/bin/rsession", "-u", "dev", parent=20, memory=8_000_000_000)
    assert seen(RSERVER, helpers=helpers).verdict is Verdict.idle
    activity = seen(RSERVER, r, helpers=helpers)
    assert activity.verdict is Verdict.busy and "rsession" in activity.reasons[0]


# --- Since when ------------------------------------------------------------------------------------------------------


def activity(verdict: Verdict, hour: float, used: float = 0.0) -> Activity:
    return Activity(verdict, at(hour * 3600), at(0), at(used * 3600), ())


def test_an_idle_session_rests_since_the_last_sign_of_a_person_or_of_work() -> None:
    first = remembered(activity(Verdict.state, 10, used=2), None)
    assert first == Memory(Verdict.state, at(2 * 3600))
    working = remembered(activity(Verdict.busy, 11), first)
    still = remembered(activity(Verdict.busy, 12), working)
    assert still == Memory(Verdict.busy, at(11 * 3600), at(12 * 3600))
    resting = remembered(activity(Verdict.state, 15, used=2), still)
    assert resting == Memory(Verdict.state, at(12 * 3600), at(12 * 3600))


def test_what_was_remembered_of_an_earlier_container_is_forgotten() -> None:
    old = Memory(Verdict.busy, at(-50), at(-10))
    assert remembered(activity(Verdict.busy, 1), old).since == at(3600)


def test_what_nobody_could_look_at_is_busy() -> None:
    nobody = unknown(at(0), "it took longer than 30 s")
    assert nobody.verdict is Verdict.busy
    assert remembered(nobody, Memory(Verdict.busy, at(-50), at(-10))).since == at(-50)


def test_a_kernel_says_how_much_memory_it_takes_for_that_is_what_would_be_lost() -> None:
    large = replace(KERNEL, memory=143_000_000)
    (said,) = seen(large, **kernel(used=9000.0, variables=("frame (DataFrame)",))).reasons
    assert said == "kernel python3 1234abcd (143 MB) holds frame (DataFrame)"


@pytest.mark.parametrize("off", [HOUR, -HOUR, 24 * HOUR, timedelta(0), timedelta(seconds=20)])
def test_a_clock_that_is_an_hour_off_changes_neither_the_verdict_nor_since_when_it_holds(off: timedelta) -> None:
    used = NOW - 7200
    look = Look(NOW, (INIT, MAIN, in_terminal(9, "nano", "x")), terminals={"/dev/pts/0": used})
    there = off.total_seconds()
    shifted = replace(
        look,
        at=NOW + there,
        processes=tuple(replace(each, started=each.started + there) for each in look.processes),
        terminals={"/dev/pts/0": used + there},
    )
    begun, ended = at(NOW - 1), at(NOW + 3)
    own, elsewhere = (on_clock(judge(each), begun, ended) for each in (look, shifted))
    assert (own.verdict, own.evidence) == (elsewhere.verdict, elsewhere.evidence)
    assert abs(elsewhere.used - own.used) <= timedelta(minutes=1) and abs(elsewhere.at - own.at) <= timedelta(minutes=1)
    again = on_clock(judge(replace(shifted, at=shifted.at + 7)), at(NOW + 6), at(NOW + 9))
    assert again.used == elsewhere.used and again.began == elsewhere.began
    memory = remembered(again, remembered(elsewhere, None))
    assert memory.verdict is Verdict.state and memory.since == elsewhere.used
