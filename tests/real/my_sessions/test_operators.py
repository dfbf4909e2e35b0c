"""The page of operators: for those who administer the Hub alone, with rollouts that are paused, resumed and aborted."""

from __future__ import annotations

import re

import pytest

from flows.core.formatting import short
from flows.images.build import Built
from flows.migrations.rollouts import Rollouts
from flows.web.people.scopes import Scope
from tests.support.hub import RELEASE, Hub, Person, made, publish
from tests.support.machine import FIRST
from tests.support.my_sessions import BASE, api
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def root(hub: Hub) -> Person:
    """Somebody who administers the Hub."""
    return hub.person("root", "--admin")


def test_only_those_who_administer_the_hub_see_all_sessions_and_steer(hub: Hub, ada: Person, root: Person) -> None:
    for person, scopes, code in ((ada, tuple(Scope), "not-yours"), (root, (Scope.read,), "scope-missing")):
        asked = api(person, scopes)
        assert asked("GET", "/overview").json()["code"] == code
        given = {"image": hub.image, "step": "abort"}
        assert asked("POST", "/rollouts", json=given).json()["code"] == code
    assert ada.client.get(f"{BASE}/all").status_code == 403
    assert f'href="{BASE}/all"' not in ada.sees(f"{BASE}/") and f'href="{BASE}/all"' in root.sees(f"{BASE}/")


def test_a_rollout_is_paused_resumed_and_aborted_on_the_page(hub: Hub, ada: Person, root: Person, base: Built) -> None:
    rollouts, image = Rollouts(hub.sessions.store.database), made(hub.settings, base, "rolled out")
    publish(hub.settings, image, "20261127")
    rollouts.begin({(FIRST, RELEASE): image}, {}, "a test")
    wait_until(lambda: "/do/steer" in root.sees(f"{BASE}/all"))  # what was seen is remembered for half a minute
    shown = root.client.get(f"{BASE}/all")
    assert short(image) in shown.text and ">ada</td>" in shown.text and "behind" in shown.text
    [key, *_] = re.findall(r'name="form" value="([^"]*)"', shown.text)
    for step, state in (("pause", "paused"), ("resume", "running"), ("abort", "aborted")):
        sent = {"form": key, "page": "all", "image": image, "step": step}
        assert root.client.post(f"{BASE}/do/steer", data=sent).status_code == 200
        assert rollouts.all()[image].way == state
    assert api(root)("POST", "/rollouts", json={"image": "f" * 64, "step": "pause"}).json()["code"] == "refused"
