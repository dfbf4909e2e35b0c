"""Limits of people at the records of sessions: two at once, the Hub's groups, and bytes that the settings say."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from flows.catalog.model import Access
from flows.core.database import open_database
from flows.core.leases import held
from flows.core.settings import Settings
from flows.core.settings.spans import Span
from flows.sessions.homes.folders import ref_of
from flows.sessions.model import Session, TokenRef
from flows.sessions.people import rights
from flows.sessions.people.person_limits import Homes, OverLimit
from flows.sessions.store import Store
from flows.web.my_sessions import problems
from flows.web.my_sessions.problems import Code
from flows.web.my_sessions.verbs import person_limit_verbs
from flows.web.people import servers
from flows.web.people.offers import Offer
from flows.web.people.person_limits import Allowance

GB = 10**9
Make = Callable[..., Allowance]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def made(**limits: Any) -> Allowance:
        settings = Settings(home=tmp_path, hub=True, session_memory=1.0, person_limits=limits)
        return Allowance(settings, open_database(settings.database))

    return made


def add(allowance: Allowance, name: str, owner: str, *, runs: bool = True) -> None:
    store, folder = Store(allowance.database), Path("/nowhere")
    made = Session(
        name,
        "p",
        "2026a",
        "sha256:0",
        0,
        ref_of(folder),
        TokenRef(str(folder / "token")),
        Access(port=8000),
        memory=2 * GB,
        cpus=1,
    )
    store.add(name, lambda uid: replace(made, uid=uid), uids=Span(first=300_000, last=300_099), owner=owner)
    store.want(name, runs)


def test_two_who_begin_at_once_do_not_both_get_the_last_place(make: Make) -> None:
    allowance, at_once = make(sessions=2), Barrier(6)
    add(allowance, "ada", "ada", runs=False)

    def begin(number: int) -> bool:
        at_once.wait()
        try:
            with allowance.within("ada", allowance.takes(GB, 1)):
                add(allowance, f"ada--{number}", "ada")
        except OverLimit:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(begin, range(6))) == 1
    assert allowance.account("ada").total.sessions == 2


def test_sessions_of_others_and_what_is_stopped_take_nothing(make: Make) -> None:
    allowance = make(memory_gb=4, cpus=2)
    add(allowance, "ada", "ada")
    add(allowance, "notes", "ada", runs=False)
    add(allowance, "eve", "eve")
    add(allowance, "shell", "")
    told = person_limit_verbs.limits_of(allowance.account("ada"), allowance.homes("ada"))
    assert told.homes == Homes(2, 0, None) and "home" not in told.text  # homes in folders have no limit
    assert [(one.resource.value, one.used, one.allowed) for one in told.limits] == [
        ("sessions", 2, None),
        ("memory", 2 * GB, 4 * GB),
        ("cpus", 1, 2),
        ("gpus", 0, None),
    ]
    with allowance.within("ada", allowance.takes(2 * GB, 1), "notes"):
        pass
    with pytest.raises(OverLimit) as refused, allowance.within("ada", allowance.takes(3 * GB, 1), "notes"):
        raise AssertionError("it began")
    problem = problems.of(refused.value)
    assert (problem.code, problem.status) == (Code.limit, 409) and problem.why and problem.hint


def test_images_are_fetched_before_others_of_the_same_person_have_to_wait(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowance, seen = make(sessions=2), dict[str, bool]()
    add(allowance, "ada", "ada", runs=False)

    def noting(what: str) -> Callable[..., None]:
        lease = "limits of ada"
        return lambda *_: seen.update({what: lease in held(allowance.database, lease)})

    monkeypatch.setattr(servers, "fetch_for_start", noting("fetched"))
    monkeypatch.setattr(servers, "start_session", noting("started"))
    servers.Servers(allowance.settings).start("ada", "", None)
    assert seen == {"fetched": False, "started": True}


@pytest.mark.parametrize(
    ("homes", "text"),
    [
        (Homes(0, 0, None), ""),
        (Homes(1, 0, None), ""),
        (Homes(2, 1, None), "You have 2 homes, 1 of them without a session."),
        (Homes(1, 0, 20 * GB), "You have 1 home; each home and volume may take 20 GB of disk."),
    ],
)
def test_homes_are_told_beside_their_limit(homes: Homes, text: str) -> None:
    assert str(homes) == text


def test_what_a_profile_does_not_say_is_as_the_settings_say(make: Make) -> None:
    allowance = make(memory_gb=0.5)
    [fits, large, without] = allowance.offered(
        allowance.account("ada"),
        [Offer("fits", "r", "", memory=GB // 2), Offer("large", "r", ""), Offer("none", "r", "", why_not="No image.")],
    )
    assert (fits.why_not, without.why_not) == ("", "No image.")
    assert large.why_not.endswith("You may have 0.5 GB of memory, and it takes 1.")


def test_the_groups_are_those_that_the_hub_has_said_last(make: Make) -> None:
    allowance = make(sessions=1, groups={"staff": {"sessions": 2}})
    add(allowance, "ada", "ada")
    assert allowance.account("ada").refusal(allowance.takes(1, 1))
    assert not allowance.account("ada", ("staff",)).refusal(allowance.takes(1, 1))
    told = {"name": "ada", "groups": ["staff"], "scopes": [], "logins": {}}
    rights.file(allowance.settings).parent.mkdir(parents=True)
    rights.keep(allowance.settings, rights.from_json({"accounts": [told], "shares": [], "servers": {}}))
    assert not allowance.account("ada").refusal(allowance.takes(1, 1))
    rights.file(allowance.settings).write_text("{")  # cut short
    assert allowance.account("ada").refusal(allowance.takes(1, 1))
