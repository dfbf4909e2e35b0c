"""Volumes as people ask for them, and home and volumes as one set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.catalog.model import Access
from flows.cli.session_tables import had
from flows.core.errors import RefitError
from flows.sessions.containers.podman_options import mount_option
from flows.sessions.homes.folders import beside
from flows.sessions.homes.subvolumes import all_or_none
from flows.sessions.homes.volumes import Part, Wanted, check_unused, parts, read_wanted, users
from flows.sessions.model import HomeRef, Session, TokenRef, Volume

PLAIN = Session("ana", "p", "2026a", "sha256:1", 300_000, HomeRef("/homes/ana"), TokenRef("/token"), Access())
DATA = Volume("data", "/data", HomeRef("/volumes/ana/data"))


def test_a_volume_is_asked_for_by_name_and_path() -> None:
    assert read_wanted(["data:/data", "models:/home/dev/models:ro"]) == (
        Wanted("data", "/data"),
        Wanted("models", "/home/dev/models", read_only=True),
    )


@pytest.mark.parametrize(
    "text",
    [
        *("data", "data:", ":/data", "data:data", "data:/data:rw", "data:/data:ro:ro", "../x:/data", "data:/a,ro"),
        *("data:/", "data:/home", "data:/home/dev", "data:/home/dev/../x", "data:/data/.", "data://data", "data:/a b"),
        *("data:/etc/x", "data:/usr", "data:/run/refit", "data:/dev/shm", "data:/data\n"),
    ],
)
def test_a_volume_that_cant_be_is_refused(text: str) -> None:
    with pytest.raises(RefitError, match=r"is no volume|No volume can be at|can't be the name"):
        read_wanted([text])


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ("data:/other", "is asked for twice"),
        ("more:/data/mine", "would be inside"),
        ("more:/data/mine/deeper", "'more' at /data/mine/deeper would be inside 'data' at /data/mine"),
        ("more:/data", "'data' at /data/mine would be inside 'more' at /data"),
    ],
)
def test_volumes_have_names_and_places_of_their_own(other: str, why: str) -> None:
    for both in (["data:/data/mine", other], [other, "data:/data/mine"]):
        with pytest.raises(RefitError, match=why):
            read_wanted(both)


def test_a_session_of_before_there_were_volumes_has_none() -> None:
    assert Session.from_json(PLAIN.to_json().replace(',"volumes":[]', "")) == PLAIN
    with_one = replace(PLAIN, volumes=(DATA,))
    assert Session.from_json(with_one.to_json()) == with_one


def test_records_from_the_time_when_homes_were_paths_are_read_and_written_alike() -> None:
    volume = '{"name":"data","path":"/data","folder":"/volumes/ana/data","read_only":false,"shared":false}'
    record = PLAIN.to_json().replace('"volumes":[]', f'"volumes":[{volume}]')
    assert '"home":"/homes/ana"' in record
    assert Session.from_json(record) == replace(PLAIN, volumes=(DATA,))
    assert Session.from_json(record).to_json() == record


def test_what_a_session_shares_or_cant_write_is_not_in_its_set() -> None:
    others = (replace(DATA, name="s", shared=True), replace(DATA, name="r", read_only=True))
    assert parts(replace(PLAIN, volumes=(DATA, *others))) == (Part("", PLAIN.home), Part("data", DATA.ref))


def test_copies_of_volumes_lie_beside_that_of_the_home_and_changes_name_them() -> None:
    home, data = parts(replace(PLAIN, volumes=(DATA,)))
    assert [beside(part, Path("/snapshots/ana/id-1")) for part in (home, data)] == [
        Path("/snapshots/ana/id-1"),
        Path("/snapshots/ana/id-1.data"),
    ]
    assert (home.named("new: x"), data.named("new: x")) == ("new: x", "new: x (volume data)")


def test_a_volume_is_mounted_as_it_is_to_be() -> None:
    assert mount_option(DATA) == "--mount=type=bind,src=/volumes/ana/data,dst=/data"
    assert mount_option(replace(DATA, read_only=True)).endswith(",dst=/data,ro")


def test_a_volume_that_a_session_has_is_not_removed() -> None:
    using = users([PLAIN, replace(PLAIN, name="bob", volumes=(DATA,))], DATA.ref)
    assert using == ("bob",)
    with pytest.raises(RefitError, match="bob has it"):
        check_unused("ana/data", using)
    check_unused("ana/data", ())


class Killed(BaseException):
    """As by a signal: nothing is tidied up."""


@given(
    snapshots=st.lists(st.integers(), min_size=1, max_size=6),
    fails=st.none() | st.integers(0, 5),
    killed=st.none() | st.integers(0, 5),
)
def test_home_and_volumes_go_back_together_whatever_happens(
    snapshots: list[int], fails: int | None, killed: int | None
) -> None:
    """A failure leaves all as they were; after a kill the same call comes to the same end."""
    damaged = [f"damaged {number}" for number in range(len(snapshots))]
    disk = {Path(f"/home-{number}"): was for number, was in enumerate(damaged)}
    count = 0

    def drafts() -> list[tuple[Path, Path]]:
        """The folders that `restore` prepares each time before it switches anything."""
        pairs = [(Path(f"/draft-{number}"), Path(f"/home-{number}")) for number in range(len(snapshots))]
        disk.update({draft: str(snapshots[number]) for number, (draft, _) in enumerate(pairs)})
        return pairs

    def exchange(one: Path, other: Path) -> None:
        nonlocal count
        count += 1
        if dead or count - 1 == killed:
            dead.append(True)
            raise Killed
        if count - 1 == fails:
            raise OSError
        disk[one], disk[other] = disk[other], disk[one]

    dead: list[bool] = []
    try:
        all_or_none(drafts(), exchange)
    except OSError:
        assert [disk[Path(f"/home-{number}")] for number in range(len(snapshots))] == damaged
    except Killed:
        dead.clear()
        killed = fails = None
        all_or_none(drafts(), exchange)
        assert [disk[Path(f"/home-{number}")] for number in range(len(snapshots))] == [str(s) for s in snapshots]
    else:
        assert [disk[Path(f"/home-{number}")] for number in range(len(snapshots))] == [str(s) for s in snapshots]


def test_what_a_session_has_beside_its_home_is_shown() -> None:
    assert not list(had(PLAIN))
    has = replace(PLAIN, volumes=(DATA, replace(DATA, name="m", path="/m", read_only=True)), gpus=1, cpus=1.5)
    assert list(had(has)) == [
        "Volumes: data at /data, m at /m (read-only)",
        "GPUs: 1, once it runs",
        "At most: 1.5 cores",
    ]
    assert "GPUs: nvidia.com/gpu=0" in had(replace(has, devices=("nvidia.com/gpu=0",)))
