"""GPUs: what CDI specifications name, who gets which, and that nobody has what another has."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine

from flows.core.database import now, open_database
from flows.core.errors import RefitError, UnknownName
from flows.core.settings import Settings
from flows.host import tools
from flows.sessions.containers import drift
from flows.sessions.gpus.gpu import Gpu, NoGpu, Taken, choose, free_from, gpus_among, read_spec
from flows.sessions.gpus.gpu_pool import GpuPool
from tests.support.simulated.fleet import fleet

KIND = "refit.example/gpu"
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def device(name: str, *nodes: str) -> dict[str, object]:
    return {"name": name, "containerEdits": {"deviceNodes": [{"path": node} for node in nodes]}}


def gpus(count: int) -> tuple[Gpu, ...]:
    return tuple(Gpu(f"{KIND}={number}", {f"/dev/gpu{number}": f"/dev/gpu{number}"}) for number in range(count))


def taken(gpu: str, session: str = "other", until: datetime | None = None) -> Taken:
    return Taken(gpu, session, "root", "", NOON, until)


def pool(folder: Path, count: int, database: Engine | None = None, **more: object) -> GpuPool:
    spec = {"cdiVersion": "0.5.0", "kind": KIND, "devices": [device(str(n), f"/dev/gpu{n}") for n in range(count)]}
    (folder / "gpus.json").write_text(json.dumps(spec))
    settings = Settings(home=folder, cdi_folders=(folder, folder / "absent"), **more)  # type: ignore[arg-type]
    return GpuPool(settings, database or open_database(f"sqlite:///{folder / 'refit.db'}"))


def test_a_specification_names_devices_in_json_and_in_yaml() -> None:
    asked = {"kind": KIND, "devices": [device("0", "/dev/gpu0")]}
    for file, text in (("x.json", json.dumps(asked)), ("x.yaml", f"kind: {KIND}\ndevices: {asked['devices']}\n")):
        (result,) = read_spec(text, Path(file))
        assert (result.name, result.kind, result.nodes) == (f"{KIND}=0", KIND, {"/dev/gpu0": "/dev/gpu0"})


@pytest.mark.parametrize("text", ["", "[]", "kind: x", "kind: x\ndevices: [{}]", "{", "a: [b"])
def test_what_is_no_specification_is_named(text: str) -> None:
    with pytest.raises(RefitError, match=r"/etc/cdi/x\.yaml is no CDI specification"):
        read_spec(text, Path("/etc/cdi/x.yaml"))


def test_each_gpu_counts_once_and_what_is_none_does_not() -> None:
    zero = {"/dev/gpu0": "/dev/gpu0"}
    devices = [
        *(Gpu(f"{KIND}={name}", zero) for name in ("0", "GPU-uuid")),
        Gpu(f"{KIND}=all", {**zero, "/dev/gpu1": "/dev/gpu1"}),
        Gpu("refit.example/net=0", {"/dev/net": "/dev/net"}),
    ]
    assert [gpu.name for gpu in gpus_among(devices, ())] == [f"{KIND}=0"]
    assert [gpu.name for gpu in gpus_among(devices, ("refit.example/net",))] == ["refit.example/net=0"]


@given(
    count=st.integers(0, 4),
    others=st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["", "x", "y"])), max_size=6),
    asked=st.integers(0, 3),
    share=st.integers(1, 3),
    had=st.sets(st.integers(0, 4)),
)
def test_nobody_gets_what_is_taken_and_who_had_one_gets_it_again(
    count: int, others: list[tuple[int, str]], asked: int, share: int, had: set[int]
) -> None:
    there = gpus(count)
    taken_gpus = [taken(f"{KIND}={number}", session) for number, session in others]
    before = {f"{KIND}={number}" for number in had}
    users = Counter(one.gpu for one in taken_gpus)
    held = {one.gpu for one in taken_gpus if not one.session}
    free = {gpu.name for gpu in there if gpu.name not in held and users[gpu.name] < share}
    chosen = choose(there, taken_gpus, asked, share, before)
    if len(free) < asked:
        assert chosen is None
        return
    assert chosen is not None and len(set(chosen)) == asked and set(chosen) <= free
    assert len(before & set(chosen)) == min(asked, len(before & free))


def test_when_the_next_is_given_back_is_known_only_of_those_that_are_held_for_a_time() -> None:
    later = NOON + timedelta(hours=1)
    assert free_from([taken("a"), taken("b", "", later), taken("c", "", later + timedelta(hours=1))]) == later
    assert free_from([taken("a")]) is None


def test_sessions_take_gpus_wait_for_them_and_give_them_back(tmp_path: Path) -> None:
    shared = pool(tmp_path, 2)
    assert shared.take("ana", 1, by="root") == (f"{KIND}=0",) == shared.take("ana", 1, by="root")
    assert shared.take("ben", 1, by="root") == (f"{KIND}=1",)
    with pytest.raises(NoGpu, match=r"(?s)'cyd' waits for a GPU.*gpu=0: session ana"):
        shared.take("cyd", 1, by="root")
    waiting = Thread(target=shared.take, args=("cyd", 1), kwargs={"by": "root", "wait": 30.0})
    waiting.start()
    assert shared.keep("ana", ()) == (f"{KIND}=0",)
    waiting.join()
    assert {one.gpu: one.session for one in shared.taken()} == {f"{KIND}=0": "cyd", f"{KIND}=1": "ben"}
    shared.keep("cyd", ())
    shared.keep("ben", ())
    assert shared.take("ben", 1, (f"{KIND}=1",), by="root") == (f"{KIND}=1",)


def test_a_session_that_needs_fewer_gives_none_back_before_it_says_so(tmp_path: Path) -> None:
    shared = pool(tmp_path, 3)
    assert shared.take("ana", 2, by="root") == (f"{KIND}=0", f"{KIND}=1")
    assert shared.take("ana", 1, (f"{KIND}=1",), by="root") == (f"{KIND}=0",)
    assert len(shared.taken()) == 2
    assert shared.keep("ana", (f"{KIND}=0",)) == (f"{KIND}=1",)
    assert [one.gpu for one in shared.taken()] == [f"{KIND}=0"]
    assert shared.take("ana", 3, by="root") == tuple(f"{KIND}={number}" for number in range(3))


def test_what_a_person_holds_no_session_gets_until_its_time_is_up(tmp_path: Path) -> None:
    shared = pool(tmp_path, 1, gpu_share=2)
    shared.take("ana", 1, by="root")
    with pytest.raises(RefitError, match=r"(?s)is taken.*session ana"):
        shared.hold(f"{KIND}=0", by="root")
    with pytest.raises(UnknownName):
        shared.hold(f"{KIND}=1", by="root")
    shared.keep("ana", ())
    until = now() + timedelta(hours=1)
    shared.hold(f"{KIND}=0", by="root", why="a porterbox", until=until)
    with pytest.raises(NoGpu, match=r"root \(a porterbox\)"):
        shared.take("ana", 1, by="root")
    assert shared.free() == (0, until)
    assert shared.let_go(f"{KIND}=0") and not shared.let_go(f"{KIND}=0") and not shared.taken()
    shared.hold(f"{KIND}=0", by="root", until=now())
    assert not shared.taken() and shared.take("ana", 1, by="root") == (f"{KIND}=0",)


def test_where_sessions_share_gpus_as_many_have_one_as_may(tmp_path: Path) -> None:
    shared = pool(tmp_path, 2, gpu_share=2)
    names = [shared.take(name, 1, by="root")[0] for name in "abcd"]
    assert Counter(names) == {f"{KIND}=0": 2, f"{KIND}=1": 2}
    with pytest.raises(NoGpu):
        shared.take("e", 1, by="root")


def test_of_many_that_want_one_at_once_exactly_one_gets_it(tmp_path: Path) -> None:
    one = pool(tmp_path, 1)
    got: list[str] = []

    def want(name: str) -> None:
        try:
            one.take(name, 1, by="root")
            got.append(name)
        except NoGpu:
            pass

    threads = [Thread(target=want, args=(f"s{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 1 == len(one.taken())


def test_a_machine_without_specifications_has_none(tmp_path: Path) -> None:
    nothing = GpuPool(
        Settings(home=tmp_path, cdi_folders=(tmp_path / "absent",)), open_database(f"sqlite:///{tmp_path / 'r.db'}")
    )
    assert not nothing.gpus()
    with pytest.raises(NoGpu, match="This machine has 0"):
        nothing.take("ana", 1, by="root")


def test_f20_limits_that_a_session_was_made_with_are_nobodys_change_by_hand() -> None:
    called = ["podman", "create", "--name=x", *tools.resource_limits(10**9, 0.5), "image"]
    limits = {"Memory": 10**9, "NanoCpus": 500_000_000, "CpuQuota": 50_000}
    told = {"Config": {"CreateCommand": called}, "Name": "x", "HostConfig": limits, "NetworkSettings": {}}
    assert drift.changes(told) == ()
    assert drift.changes({**told, "HostConfig": {**limits, "Memory": 1}}) == ("its limit Memory is 1",)


def test_gpus_of_a_session_that_is_removed_are_given_back_while_its_record_says_which(tmp_path: Path) -> None:
    with fleet(tmp_path) as simulated:
        made, sessions = simulated.add(1, simulated.image("one")), simulated.sessions
        known: list[bool] = []

        def keep(name: str, _: object) -> None:
            known.append(sessions.store.find(name) is not None)

        sessions.gpus = SimpleNamespace(keep=keep)  # type: ignore[assignment]
        with simulated.world.person():
            sessions.remove(made.name)
        assert known == [True] and sessions.store.find(made.name) is None
