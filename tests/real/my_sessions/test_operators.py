"""The page of operators: for those who administer the Hub alone, with rollouts that are paused, resumed and aborted."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from flows.core.formatting import short
from flows.images.build import Built
from flows.migrations.rollouts.store import Rollouts
from flows.web.people.scopes import Scope
from tests.support.hub import RELEASE, Hub, Person, made, publish
from tests.support.machine import FIRST
from tests.support.my_sessions import BASE, api, refit
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

    def shows_it() -> bool:
        shown = root.sees(f"{BASE}/all")
        return all(text in shown for text in ("/do/steer", short(image), ">ada</td>", "behind"))

    wait_until(shows_it)  # what was seen is remembered for half a minute
    shown = root.client.get(f"{BASE}/all")
    [key, *_] = re.findall(r'name="form" value="([^"]*)"', shown.text)
    for step, state in (("pause", "paused"), ("resume", "running"), ("abort", "aborted")):
        sent = {"form": key, "page": "all", "image": image, "step": step}
        assert root.client.post(f"{BASE}/do/steer", data=sent).status_code == 200
        assert rollouts.all()[image].way == state
    assert api(root)("POST", "/rollouts", json={"image": "f" * 64, "step": "pause"}).json()["code"] == "refused"


def test_operators_do_the_same_from_their_own_machine(
    hub: Hub, ada: Person, root: Person, base: Built, tmp_path: Path
) -> None:
    rollouts, image = Rollouts(hub.sessions.store.database), made(hub.settings, base, "steered from elsewhere")
    publish(hub.settings, image, "20261129")
    rollouts.begin({(FIRST, RELEASE): image}, {}, "a test")
    kept = tmp_path / "refit" / "login.json"
    kept.parent.mkdir()

    def logged_in(person: Person) -> None:
        kept.write_text(json.dumps({"url": hub.settings.gateway_url, "token": api(person).token}))

    logged_in(root)
    wait_until(lambda: short(image) in refit(tmp_path, "mine", "overview").stdout)
    for step, state in (("pause", "paused"), ("resume", "running"), ("abort", "aborted")):
        told = json.loads(refit(tmp_path, "mine", "steer", short(image), step, "--json").stdout)
        assert [one["state"] for one in told["rollouts"] if one["image"] == image] == [state]
        assert rollouts.all()[image].way == state
    logged_in(ada)
    for words in (("overview",), ("steer", short(image), "resume")):
        refused = refit(tmp_path, "mine", *words)
        assert refused.returncode == 1 and "Traceback" not in refused.stderr
    assert rollouts.all()[image].way == "aborted"
