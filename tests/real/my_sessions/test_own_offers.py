"""A profile of a person's own that is offered to a group, for real: who sees it, and who may start it by its name."""

from __future__ import annotations

import httpx
import pytest

from flows.core.database import now
from flows.core.settings.personal_builds import PersonalBuilds
from flows.images.build import Built
from flows.images.registry import Registry
from flows.migrations.planning.rollout import Action, Decision, Reason
from flows.migrations.rollouts.session_planner import SessionPlanner
from flows.publishing.own_profiles import OwnProfile, OwnProfiles, repository
from tests.support.hub import RELEASE, Hub, Person, made
from tests.support.my_sessions import BASE, api
from tests.support.waiting import wait_until

MINE = "jupyter-adas-deb12-py311"
CHOICE = {"profile": MINE, "release": RELEASE}
FILES = {
    "display.txt": b"<b>Ada's</b> tools\n",
    "bundle.yaml": b"extends: minimal\n",
    "py311/Pipfile": b'[packages]\niniconfig = "~=2.0"\n\n[requires]\npython_version = "3.11"\n',
}


@pytest.fixture(scope="module")
def offered(hub: Hub, base: Built) -> OwnProfiles:
    """A profile of ada's, which has an image, offered to a group."""
    records = OwnProfiles(hub.sessions.store.database)
    records.take(OwnProfile("adas", "ada", MINE, RELEASE, FILES, (), now()), PersonalBuilds())
    publish(hub, made(hub.settings, base, "of ada's own", MINE, "ada"))
    records.offer("adas", "ada", ("lab",), vouched=("lab",))  # an operator did: ada is no member
    return records


def publish(hub: Hub, image: str) -> None:
    """Let an image be the newest one of that profile, in ada's own repository."""
    registry, of_all = Registry(hub.settings), hub.settings.repository
    manifest, own = registry.manifest(of_all, image), repository(of_all, "ada")
    for part in (*manifest.document["layers"], manifest.document["config"]):
        registry.mount(own, part["digest"], of_all, part["size"])
    for tag in (f"{MINE}_{RELEASE}", f"{MINE}_{RELEASE}_20261121"):
        registry.put_manifest(own, tag, manifest.content, manifest.media_type)


def next_build(hub: Hub, session: str) -> Decision:
    """The line of a session in a plan of now."""
    [line] = [one for one in SessionPlanner(hub.settings).plan([], "") if one.session == session]
    return line


def chosen(person: Person, server: str) -> httpx.Response:
    page = f"/hub/spawn/{person.name}/{server}"
    return person.send(page, page, profile=f"{RELEASE}/{MINE}")


@pytest.mark.long
def test_a_member_sees_and_starts_it_and_for_somebody_else_it_isnt_there(
    hub: Hub, offered: OwnProfiles, base: Built, ada: Person, eve: Person
) -> None:
    boss, kai = hub.person("chief", "--admin"), hub.person("kai")
    boss.api("POST", "/groups/lab")
    assert boss.api("POST", "/groups/lab/users", users=["kai"]).status_code == 200
    form = kai.sees("/hub/spawn/kai/tools")
    assert f"{RELEASE}/{MINE}" in form and "By ada;" in form and "GB, image" in form
    assert "&lt;b&gt;Ada&#39;s&lt;/b&gt; tools" in form and "<b>Ada" not in form
    assert MINE in ada.sees("/hub/spawn/ada/tools")
    of_kai = api(kai)  # what it knows of groups, the Hub tells it after a moment
    wait_until(lambda: MINE in {one["profile"] for one in of_kai("GET", "/profiles").json()})
    [mine] = [one for one in of_kai("GET", "/profiles").json() if one["profile"] == MINE]
    assert (
        (mine["by"], mine["packages"]) == ("ada", ["iniconfig"])
        and mine["size"] > 0
        and mine["built"]
        and not mine["why_not"]
    )
    chosen(kai, "tools")
    assert kai.reaches("/user/kai/tools/api") == "kai--tools"
    assert hub.sessions.store.session("kai--tools").profile == MINE

    assert MINE not in eve.sees("/hub/spawn/eve/tools") and MINE not in eve.sees(f"{BASE}/")
    theirs = api(eve)
    assert MINE not in {one["profile"] for one in theirs("GET", "/profiles").json()}
    refused = theirs("POST", "/sessions", json={**CHOICE, "server": "tools"})
    assert refused.status_code == 409 and "There is no profile" in refused.text
    changed = theirs("POST", "/sessions/eve/profile", json=CHOICE)
    assert changed.status_code == 409 and "There is no profile" in changed.text
    copied = theirs("POST", "/sessions/eve/clone", json={**CHOICE, "server": "tools"})
    assert copied.status_code == 409 and "There is no profile" in copied.text
    told = chosen(eve, "tools").text
    wait_until(lambda: "There is no profile" in eve.sees("/hub/spawn-pending/eve/tools") + told)
    assert "eve--tools" not in hub.sessions.store.owners()

    publish(hub, made(hub.settings, base, "changed since then", MINE, "ada"))
    line = next_build(hub, "kai--tools")
    assert (line.action, line.reason, line.detail) == (Action.wait, Reason.ask, "ada's own recipe made it")
    assert of_kai("POST", "/sessions/kai--tools/mode", json={"mode": "when-idle"}).status_code == 200
    assert next_build(hub, "kai--tools").reason is Reason.ask
    wait_until(lambda: of_kai("GET", "/sessions/kai--tools").json()["update"]["by"] == "ada")
    when = of_kai("GET", "/sessions/kai--tools").json()["update"]["when"]
    assert "you are to agree. ada's own recipe made that image" in when
    page = kai.sees(f"{BASE}/sessions/kai--tools")
    assert "ada&#39;s own recipe" in page and f'name="image" value="{line.new}"' in page
    offered.offer("adas", "ada", ())
    line = next_build(hub, "kai--tools")
    assert (line.action, line.reason) == (Action.skip, Reason.not_offered)
    assert MINE not in kai.sees("/hub/spawn/kai/more")
    assert kai.reaches("/user/kai/tools/api") == "kai--tools"  # a session that is there goes on
