"""Keys of people, what the forwarder reads, and what was changed by hand: all plain data."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pytest

from flows.core.errors import RefitError, UnknownName
from flows.core.settings import Settings
from flows.sessions.containers import drift
from flows.sessions.containers.podman import Podman
from flows.sessions.containers.podman_records import is_ours
from flows.sessions.ssh import forwarder
from flows.sessions.ssh.forwarder import Forwarder
from flows.sessions.ssh.keys import NoPublicKey, PublicKey, added, read_keys, without
from flows.sessions.ssh.session_access import Ssh

ED25519 = "AAAAC3NzaC1lZDI1NTE5AAAAIGPxTeBnBYYPqTA2LkyOB+Xb2DHl5s8GFQBlVKnxmCHy"
OTHER = "AAAAC3NzaC1lZDI1NTE5AAAAINTcWKlPDJbYQ5zYf3xGf2jA6mGgyVKnTmZWyUZg3Rr4"


def field(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


def rsa(bits: int) -> str:
    modulus = (1 << (bits - 1)).to_bytes(bits // 8 + 1, "big")
    return base64.b64encode(field(b"ssh-rsa") + field(b"\1\0\1") + field(modulus)).decode()


# --- Keys -----------------------------------------------------------------------------------------------------------


def test_keys_are_read_line_by_line() -> None:
    text = f"# mine\n\nssh-ed25519 {ED25519} ada at home\n  ssh-rsa {rsa(2048)}\n"
    mine, work = read_keys(text, "keys")
    assert (mine.kind, mine.comment, str(mine)) == ("ssh-ed25519", "ada at home", f"ssh-ed25519 {ED25519} ada at home")
    assert (work.kind, work.comment, str(work)) == ("ssh-rsa", "", f"ssh-rsa {rsa(2048)}")


def test_a_fingerprint_is_the_one_that_openssh_prints(tmp_path: Path) -> None:
    (tmp_path / "key.pub").write_text(f"ssh-ed25519 {ED25519} ada\n")
    told = subprocess.run(["ssh-keygen", "-lf", tmp_path / "key.pub"], capture_output=True, text=True, check=True)
    assert PublicKey("ssh-ed25519", ED25519).fingerprint == told.stdout.split()[1]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "nothing in it"),
        ("# only words\n", "nothing in it"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n", "private key"),
        (f'command="rm -rf ~" ssh-ed25519 {ED25519}', "options"),
        (f"from=10.0.0.1 ssh-ed25519 {ED25519} ada", "options"),
        ("ssh-dss AAAA ada", "begins with 'ssh-dss'"),
        ("ssh-ed25519", "damaged"),
        ("ssh-ed25519 !!!! ada", "damaged"),
        (f"ssh-ed25519 {ED25519[:40]} ada", "cut off"),
        (f"ssh-rsa {ED25519} ada", "another kind"),
        (f"ssh-rsa {rsa(1024)} ada", "1024 bits"),
    ],
)
def test_what_lets_nobody_in_or_does_more_is_refused(text: str, why: str) -> None:
    with pytest.raises(NoPublicKey) as refused:
        read_keys(text, "keys")
    assert why in refused.value.why and refused.value.hint


def test_a_comment_cant_change_a_terminal() -> None:
    (key,) = read_keys(f"ssh-ed25519 {ED25519} ada\x1b[31m\n", "keys")
    assert key.comment == "ada[31m"


def test_keys_are_added_once_and_removed_by_comment_or_fingerprint() -> None:
    mine, again = PublicKey("ssh-ed25519", ED25519, "old"), PublicKey("ssh-ed25519", ED25519, "new")
    other = PublicKey("ssh-ed25519", OTHER, "other")
    assert added([mine, other], [again]) == (again, other)
    assert without([mine, other], ["old"]) == without([mine, other], [mine.fingerprint]) == (other,)
    with pytest.raises(UnknownName, match="no key 'nobody'"):
        without([mine], ["nobody"])


# --- The forwarder --------------------------------------------------------------------------------------------------


def test_addresses_are_read_as_they_are_written() -> None:
    addresses = {19001: "10.88.0.7:2222", 19000: "10.88.0.9:2222"}
    assert forwarder.written(addresses) == "19000 10.88.0.9:2222\n19001 10.88.0.7:2222\n"
    assert forwarder.parse(forwarder.written(addresses)) == addresses
    assert forwarder.written({19000: ""}) == ""


def test_it_listens_on_loopback_alone() -> None:
    text = forwarder.configuration([19000, 19001])
    assert [line.split() for line in text.splitlines() if "bind" in line] == [
        ["bind", "127.0.0.1:19000"],
        ["bind", "127.0.0.1:19001"],
    ]
    assert forwarder.configuration([]) == ""


def test_what_it_is_told_before_it_runs_it_reads_when_it_starts(settings: Settings) -> None:
    told = Forwarder(settings)
    told.listen([])
    assert not told.needed
    told.listen([19000])
    told.point(19000, "10.88.0.7:2222")
    assert told.needed
    assert (told.folder / "addresses").read_text() == "19000 10.88.0.7:2222\n"
    told.point(19000, "")
    told.listen([])
    assert told.needed and (told.folder / "addresses").read_text() == ""


# --- Changed by hand ------------------------------------------------------------------------------------------------

OPTIONS = [
    *("--name=refit-ada-1", "--user=200000:0", "--ulimit", "nofile=1024:20000", "--pids-limit=4096"),
    *("--publish=127.0.0.1:18000:8888", "--mount=type=bind,src=/homes/ada,dst=/home/dev"),
    *("--env=COLOUR=blue", "--label=io.refit.session=ada"),
]


def told(**changed: object) -> dict[str, object]:
    """Podman's record of a container that Refit made."""
    options = drift.marked(OPTIONS)
    mark = options[-1].removeprefix("--label=").partition("=")
    config = {
        "CreateCommand": ["podman", "--root", "/x", "create", "--replace", *options, "localhost/image@sha256:1"],
        "Labels": {"io.refit.session": "ada", mark[0]: mark[2], "of.the": "image"},
        "Env": ["PATH=/bin", "COLOUR=blue"],
    }
    limits = {
        "PidsLimit": 4096,
        "Memory": 0,
        "PortBindings": {"8888/tcp": [{"HostIp": "127.0.0.1", "HostPort": "18000"}]},
    }
    return {
        "Name": changed.get("Name", "refit-ada-1"),
        "Config": {**config, **changed.get("Config", {})},  # type: ignore[dict-item]
        "HostConfig": {**limits, **changed.get("HostConfig", {})},  # type: ignore[dict-item]
        "Mounts": changed.get("Mounts", [{"Source": "/homes/ada", "Destination": "/home/dev"}]),
        "NetworkSettings": {"Networks": changed.get("Networks", {"podman": {}})},
    }


def test_a_container_as_refit_made_it_was_not_changed() -> None:
    assert drift.changes(told()) == ()


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"Name": "mine"}, "it was renamed to mine"),
        ({"Mounts": []}, "/home/dev is no longer mounted"),
        ({"Config": {"Env": ["COLOUR=red"]}}, "the variable COLOUR is another"),
        ({"HostConfig": {"PortBindings": {}}}, "the port 127.0.0.1:18000:8888 is no longer published"),
        ({"HostConfig": {"Memory": 1 << 30}}, f"its limit Memory is {1 << 30}"),
        ({"HostConfig": {"PidsLimit": 99}}, "its limit PidsLimit is 99"),
        ({"Networks": {"podman": {}, "other": {}}}, "it was connected with other networks: other, podman"),
    ],
)
def test_f20_what_was_changed_by_hand_is_told(changed: dict[str, object], says: str) -> None:
    assert drift.changes(told(**changed)) == (says,)


def test_f20_a_mount_and_a_port_more_are_told() -> None:
    mounts = [{"Source": "/homes/ada", "Destination": "/home/dev"}, {"Source": "/etc", "Destination": "/mnt"}]
    assert drift.changes(told(Mounts=mounts)) == ("/etc was mounted at /mnt",)


def test_f20_a_container_that_somebody_made_with_refits_labels_is_known() -> None:
    config = told()["Config"]
    assert isinstance(config, dict)
    called = ["--volume=/:/host" if word.startswith("--user") else word for word in config["CreateCommand"]]
    assert drift.changes(told(Config={"CreateCommand": called})) == (
        "it was made anew, with other options than Refit's",
    )


def test_a_container_of_an_older_refit_is_compared_with_what_it_was_made_with() -> None:
    config = told()["Config"]
    assert isinstance(config, dict)
    called = [word for word in config["CreateCommand"] if drift.LABEL not in word]
    labels = {name: value for name, value in config["Labels"].items() if name != drift.LABEL}
    older = {"CreateCommand": called, "Labels": labels}
    assert drift.changes(told(Config=older)) == ()
    assert drift.changes(told(Config=older, Name="mine")) == ("it was renamed to mine",)


def test_a_session_without_keys_says_how_to_let_people_in(settings: Settings) -> None:
    ssh = Ssh(settings, Podman(settings))
    assert ssh.keys("ada") == ()
    with pytest.raises(RefitError, match="lets nobody in") as refused:
        ssh.options("ada")
    assert "ssh-keys ada --add" in refused.value.hint


def test_f20_a_container_that_only_bears_a_label_of_refits_is_somebody_elses() -> None:
    listed = {"Names": ["mine"], "State": "running", "Labels": {"io.refit.session": "ada"}}
    assert not is_ours(listed) and not is_ours({**listed, "Labels": None})
    assert is_ours({**listed, "Labels": {f"io.refit.{name}": "1" for name in ("session", "generation", "image")}})
