"""Facts about a machine that are known without starting anything."""

from __future__ import annotations

import json
import os
import socket
import sys
from dataclasses import asdict, replace
from pathlib import Path

import psutil
import pytest

from flows.core.settings import Settings
from flows.host import mounts, sockets, tools
from flows.host.tools import Facts

LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max processes             {0:<20} {0:<20} processes
Max open files            1024                 {1:<20} files
Max nice priority         0                    0
"""


def facts(settings: Settings) -> Facts:
    return Facts(
        tools._boot(), tools._asked(settings), "runc", "cgroupfs", "chroot", 20000, 96364, "", "", "/seccomp.json", ""
    )


def write(settings: Settings, own_facts: Facts) -> None:
    (settings.folder() / "host.json").write_text(json.dumps(asdict(own_facts)))


@pytest.mark.parametrize(
    ("processes", "open_files", "options"),
    [
        ("96364", "20000", ["nofile=1024:20000", "nproc=96364:96364"]),
        ("unlimited", "unlimited", ["nofile=1024:1048576", "nproc=4194304:4194304"]),
        ("100", "512", ["nofile=512:512", "nproc=100:100"]),
    ],
)
def test_limits_stay_within_the_hard_ones(processes: str, open_files: str, options: list[str]) -> None:
    hard = tools.hard_limits(LIMITS.format(processes, open_files))
    assert tools._limits(*hard) == ["--ulimit", options[0], "--ulimit", options[1]]


def test_what_was_found_out_is_used_without_starting_anything(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(settings, facts(settings))
    monkeypatch.setattr("flows.core.programs.command.run", None)
    call = tools.podman(settings)
    assert call[0] == "podman"
    assert call[call.index("--runtime") + 1] == "runc"
    assert call[call.index("--root") + 1] == str(settings.home / "containers")
    assert tools.isolation(settings) == "chroot"


@pytest.mark.parametrize("change", [{"boot": "earlier"}, {"asked": "another podman"}])
def test_another_boot_or_program_asks_anew(settings: Settings, change: dict[str, str]) -> None:
    own_facts = facts(settings)
    write(settings, replace(own_facts, **change))
    assert tools._known(settings, own_facts.boot, own_facts.asked) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"boot": 1}'])
def test_damaged_facts_ask_anew(settings: Settings, text: str) -> None:
    (settings.folder() / "host.json").write_text(text)
    assert tools._known(settings, "boot", "asked") is None


def test_a_setting_is_part_of_what_was_asked(settings: Settings) -> None:
    assert tools._asked(settings) != tools._asked(settings.model_copy(update={"oci_runtime": "crun"}))
    assert tools._asked(settings) != tools._asked(settings.model_copy(update={"isolation": "oci"}))


def test_each_home_has_storage_of_its_own_and_short_paths(tmp_path: Path) -> None:
    one, other = Settings(home=tmp_path / ("long" * 40)), Settings(home=tmp_path / "other")
    assert tools.runtime_folder(one) != tools.runtime_folder(other)
    assert len(str(tools.runtime_folder(one))) < 40


def test_programs_that_only_root_has_in_its_path_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    assert tools.program("iptables")
    assert tools.program("surely-not-a-program") is None


def test_mount_points_below_a_folder_are_found_by_their_real_names(tmp_path: Path) -> None:
    line = r"36 35 98:0 / /homes/a\040b\134c/é rw,noatime - ext4 /dev/root rw"
    assert mounts.mount_point(line) == Path("/homes/a b\\c/é")
    assert Path("/proc") in mounts.mounts_below(Path("/"))
    assert mounts.mounts_below(tmp_path) == ()


def test_a_container_is_limited_in_what_was_said_and_gets_no_more_by_swap() -> None:
    assert tools.resource_limits(0, 0.0) == []
    assert tools.resource_limits(10**9, 0.0) == ["--memory=1000000000b", "--memory-swap=1000000000b"]
    assert tools.resource_limits(0, 1.5) == ["--cpus=1.5"]


@pytest.mark.parametrize(
    ("address", "rows", "users"),
    [
        ("127.0.0.1", ["0100007F:1388 00000000:0000 0A 1000"], {1000}),
        ("127.0.0.1", ["0100007F:1388 0100007F:9999 01 1000"], set()),  # connected, and doesn't listen
        ("127.0.0.1", ["0100007F:1389 00000000:0000 0A 1000", "0200007F:1388 00000000:0000 0A 1000"], set()),
        ("127.0.0.1", ["00000000:1388 00000000:0000 0A 7"], {7}),
        ("127.0.0.1", ["00000000:1388 00000000:0000 0A 7", "0100007F:1388 00000000:0000 0A 0"], {0}),
        ("127.0.0.1", [f"{'0' * 32}:1388 {'0' * 32}:0000 0A 8"], {8}),
        ("127.0.0.1", [f"{'0' * 16}FFFF00000100007F:1388 {'0' * 32}:0000 0A 9"], {9}),
        ("::1", [f"{'0' * 24}01000000:1388 {'0' * 32}:0000 0A 9"], {9}),
    ],
)
@pytest.mark.skipif(sys.byteorder != "little", reason="the rows are those of such a machine")
def test_a_connection_comes_to_the_user_who_listens_there(address: str, rows: list[str], users: set[int]) -> None:
    lines = []
    for number, row in enumerate(rows):
        local, remote, state, user = row.split()
        lines.append(f"{number:4}: {local} {remote} {state} 00000000:00000000 00:00000000 00000000 {user:>5} 0 12345 1")
    assert sockets.listeners(address, 5000, lines) == users


def test_a_port_of_our_own_is_nobody_elses() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        assert not sockets.is_anothers("127.0.0.1", port)
        listener.listen()
        assert sockets.listeners("127.0.0.1", port, sockets._rows(Path("/proc/net/tcp"))) == {os.geteuid()}
        assert not sockets.is_anothers("127.0.0.1", port)


@pytest.mark.skipif(sys.byteorder != "little", reason="the rows are those of such a machine")
def test_remote_ends_are_those_of_connections_alone() -> None:
    rows = [
        "0: 0100007F:1388 00000000:0000 0A 0",  # listens
        "1: 0100007F:1388 0200007F:9C40 01 0",
        "2: 0100007F:9C40 0900000A:22B8 02 0",
        f"3: {'0' * 32}:9C41 {'0' * 16}FFFF00000300007F:0016 01 0",
        f"4: {'0' * 32}:9C42 {'0' * 24}01000000:0016 06 0",
    ]
    assert sockets.connected_to(rows) == {
        ("127.0.0.2", 40000, False),
        ("10.0.0.9", 8888, True),
        ("127.0.0.3", 22, False),
        ("::1", 22, False),
    }


def test_a_connection_is_seen_from_both_of_its_ends_until_it_is_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        served, _ = listener.accept()
        with served:
            ends = {(*listener.getsockname(), False), (*client.getsockname(), False)}
            assert ends <= sockets.remote_ends()
            listed = psutil.net_connections("tcp4")
            assert ends <= {(*end.raddr, end.status == psutil.CONN_SYN_SENT) for end in listed if end.raddr}
