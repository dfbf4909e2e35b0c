"""Recipes that nobody vouches for, built: what they try to reach, to take and to leave, and what becomes of it."""

from __future__ import annotations

import secrets
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pydantic import SecretStr

from flows.core.errors import RefitError
from flows.core.programs import command
from flows.core.settings import Settings
from flows.core.settings.personal_builds import PersonalBuilds
from flows.host.mounts import mounts_below
from flows.images.build import Builder, Built
from flows.images.builder import confined, workspace
from flows.images.builder.confined_space import cgroup
from flows.images.builder.stage_builder import StageBuilder
from flows.images.registry import Registry
from flows.images.stages import Kind, Stage
from tests.support import tiny
from tests.support.leftovers import sleepers
from tests.support.live_folders import paths_below
from tests.support.waiting import wait_until

LIMITS = PersonalBuilds(disk_gb=2.0, memory_gb=0.2, processes=64, minutes=20.0)
HELLO = """\
RUN set -eu; . /mnt/env.sh; apt-get update -q; apt-get install -yq --no-install-recommends hello; hello >/said
"""
WHEEL = """\
RUN set -eu; . /mnt/env.sh; python3 -m venv --without-pip /opt/try; \\
    /mnt/uv pip install --python /opt/try/bin/python --no-deps --no-config six
"""
# Of the small image that a build need not bring first, which takes ten seconds of CPU with the base.
PROGRAMS = [f"/bin/{name}" for name in ("sh", "sleep", "head", "tail", "seq", "setsid", "install", "touch")]


@pytest.fixture(scope="module")
def confining(shared: Settings) -> Settings:
    settings = shared.model_copy(update={"personal_builds": LIMITS})
    if why := confined.obstacle(settings):
        pytest.skip(why)
    return settings


@pytest.fixture
def own(confining: Settings) -> Iterator[Settings]:
    yield confining
    assert not mounts_below(confining.home / "running")
    assert not [*(confining.home / "running").iterdir()]
    assert not groups_of_processes(confining)


@pytest.fixture(scope="module")
def small(builder: Builder) -> Built:
    """An image of this machine's own programs."""
    return builder.build(replace(tiny.root(), files={"tree.tar": tiny.tree(PROGRAMS)}), None)


def groups_of_processes(settings: Settings) -> list[Path]:
    """Those of this home's builds; other tests have theirs at the same time."""
    name = cgroup(Path("build-"), settings).name
    return [path for path in paths_below(Path("/sys/fs/cgroup")) if path.name.startswith(name)]


def stage(name: str, text: str) -> Stage:
    return Stage(name, Kind.instructions, "base", text, suite="bookworm", confined="ada")


def build(settings: Settings, registry: Registry, base: Built, text: str, folder: Path) -> str:
    """Make a stage of these instructions; returns the output."""
    log = folder / "log"
    StageBuilder(settings, registry).make(stage("hostile", text), base.digest, log)
    return log.read_text()


@dataclass(frozen=True)
class Looked:
    """The output of a build, that of each step by its name, and a file of this machine that one of them was after."""

    said: dict[str, str]
    left: Path
    whole: str


@pytest.fixture(scope="module")
def looked(confining: Settings, registry: Registry, base: Built, tmp_path_factory: pytest.TempPathFactory) -> Looked:
    """One build that tries everything that harms nobody. The base takes ten seconds of CPU to be brought."""
    folder = tmp_path_factory.mktemp("looks")
    secret, left = folder / "secret", folder / "left"
    secret.write_text("told to nobody")
    ask = (
        "import socket, sys; s = socket.create_connection(('127.0.0.1', 3128)); "
        f"s.sendall(b'CONNECT {registry.host} HTTP/1.1\\r\\n\\r\\n'); print('answer', s.recv(99))"
    )
    steps = {
        "nobody": "cat /proc/self/uid_map; cat /proc/net/dev | tail -n +3; ls -A /sys/class/net; id -u; env",
        "files": f"cat {secret} /proc/1/root{secret} /proc/1/environ; echo x >{left}; cat /etc/shadow; true",
        "mounts": "mount -t tmpfs x /media || echo no mount; mount --bind /proc /media || echo no bind; "
        "mknod /tmp/disk b 254 0 || echo no device; echo 1 >/proc/sys/kernel/sysrq || echo no kernel; "
        "unshare -Urm true || echo no namespace; chroot / true || echo no chroot",
        "settings": f'. /mnt/env.sh; cat /mnt/env.sh /mnt/apt.conf; python3 -c "{ask}"',
    }
    text = "".join(f"RUN echo begin {name}; {step}; echo end {name}\n" for name, step in steps.items())
    said = build(confining, registry, base, text + HELLO + WHEEL, folder)
    parts = {name: said.split(f"\nbegin {name}\n")[1].split(f"\nend {name}\n")[0] for name in steps}
    return Looked(parts, left, said)


def test_a_step_is_nobody_and_has_no_network(own: Settings, looked: Looked) -> None:
    said = looked.said["nobody"]
    assert f"{LIMITS.first_uid}      65536" in said
    assert "eth" not in said
    assert "REFIT" not in said


def test_it_reads_and_writes_nothing_of_the_machine(own: Settings, looked: Looked) -> None:
    said = looked.said["files"]
    assert "told to nobody" not in said
    own_lines = {line for line in Path("/etc/shadow").read_text().splitlines() if line.count("$") > 2}
    assert not [line for line in own_lines if line in said]
    assert not looked.left.exists()


def test_it_mounts_nothing_and_makes_no_device(own: Settings, looked: Looked) -> None:
    said = f"\n{looked.said['mounts']}\n"
    for no in ("no mount", "no bind", "no device", "no kernel", "no chroot"):
        assert f"\n{no}\n" in said, no


def test_it_sees_no_setting_and_reaches_no_service(own: Settings, looked: Looked) -> None:
    said = looked.said["settings"]
    assert "answer b'HTTP/1.1 403" in said
    _, password = own.registry_login
    assert not password or password not in said
    assert str(own.home) not in "".join(line for line in said.splitlines() if line.startswith("export"))


def test_mirrors_are_reached(own: Settings, looked: Looked) -> None:
    assert "Setting up hello" in looked.whole
    assert "+ six" in looked.whole


def test_it_takes_no_more_disk_than_it_may(own: Settings, registry: Registry, small: Built, tmp_path: Path) -> None:
    little = own.model_copy(update={"personal_builds": LIMITS.model_copy(update={"disk_gb": 0.5})})
    with pytest.raises(RefitError, match=r"disk is full"):
        build(little, registry, small, "RUN head -c 1G /dev/zero >/full", tmp_path)


def test_it_takes_no_more_memory_than_it_may(own: Settings, registry: Registry, small: Built, tmp_path: Path) -> None:
    with pytest.raises(RefitError, match="can't be built"):
        build(own, registry, small, "RUN tail /dev/zero", tmp_path)
    assert "not found" not in (tmp_path / "log").read_text()


def test_it_forks_no_more_than_it_may(own: Settings, registry: Registry, small: Built, tmp_path: Path) -> None:
    text = "RUN for n in $(seq 500); do sleep 60 & done; echo all run"
    said = ""
    try:
        said = build(own, registry, small, text, tmp_path)
    except RefitError:
        said = (tmp_path / "log").read_text()
    assert "fork" in said
    assert "\nall run\n" not in said


def test_it_ends_with_its_time(own: Settings, registry: Registry, small: Built, tmp_path: Path) -> None:
    limits = LIMITS.model_copy(update={"minutes": 0.1})
    hurried = own.model_copy(update={"personal_builds": limits})
    with pytest.raises(RefitError, match="takes too long"):
        build(hurried, registry, small, "RUN (setsid sleep 4711 &) ; sleep 4711", tmp_path)
    wait_until(lambda: "sleep 4711" not in command.run(["ps", "-eo", "args"]).stdout)


_BUILD = """
import sys
from pathlib import Path
from flows.core.settings.personal_builds import PersonalBuilds
from flows.core.settings import Settings
from flows.images.builder.stage_builder import StageBuilder
from flows.images.registry import Registry
from flows.images.stages import Kind, Stage
from tests.support.leftovers import sleepers
from tests.support.waiting import wait_until
limits = PersonalBuilds.model_validate_json(sys.argv[5])
settings = Settings(home=Path(sys.argv[1]), registry_port=int(sys.argv[2]), personal_builds=limits)
stage = Stage("endless", Kind.instructions, "base", f"RUN sleep {sys.argv[4]}", suite="bookworm", confined="ada")
StageBuilder(settings, Registry(settings)).make(stage, sys.argv[3], settings.home.parent / "log")
"""


def test_a_killed_build_leaves_nothing_to_the_next(own: Settings, small: Built) -> None:
    nap = f"300.{secrets.randbelow(10**9)}"
    limits = own.personal_builds.model_dump_json()
    argv = [sys.executable, "-c", _BUILD, str(own.home), str(own.registry_port), small.digest, nap, limits]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: sleepers(nap))
        process.kill()
    assert groups_of_processes(own)
    assert workspace.recover(own) == 1
    assert sleepers(nap) == []


def test_an_index_with_a_login_is_no_mirror_for_them(own: Settings) -> None:
    secret = own.model_copy(update={"pip_index_url": SecretStr("https://me:secret@example.org/simple")})
    assert "login" in confined.obstacle(secret)


def test_owners_in_the_layer_are_those_of_the_image(
    own: Settings, registry: Registry, small: Built, tmp_path: Path
) -> None:
    """The key is another than that of the same instructions elsewhere: neither is taken for the other."""
    builder = Builder(own, registry)
    text = "RUN install -o 33 -g 33 /dev/null /file; touch /roots"
    inside = builder.build(stage("inside", text), small)
    outside = builder.build(Stage("outside", Kind.instructions, "base", text, suite="bookworm"), small)
    assert inside.key != outside.key
    layer = registry.manifest(registry.stages, inside.digest).document["layers"][-1]
    with (tmp_path / "layer").open("w+b") as file:
        registry.get_file(registry.stages, layer["digest"], file, int(layer["size"]))
        with tarfile.open(fileobj=file) as tar:
            owners = {one.name: one.uid for one in tar}
    assert (owners["file"], owners["roots"], max(owners.values())) == (33, 0, 33)
