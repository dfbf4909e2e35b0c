"""Servers of a real JupyterHub that isn't Refit's: seen, moved by the Hub's API, and brought back."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from signal import SIGKILL

import httpx
import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings
from typer.testing import CliRunner

from flows.cli.main import app
from flows.core.errors import RefitError
from flows.core.lazily import lazily
from flows.core.settings import Settings
from flows.core.settings.environment import variables
from flows.core.settings.others import HubServers, OthersSettings
from flows.migrate_sessions import migrate_sessions
from flows.migrations.executor import MoveExecutor
from flows.migrations.move import Phase
from flows.migrations.move_steps import State
from flows.migrations.planning.rollout import Action, Decision
from flows.migrations.recovery import recover_all
from flows.migrations.results import Result
from flows.migrations.rollouts.session_planner import SessionPlanner, plan_migration
from flows.services.doctor_others import others
from flows.sessions.lifecycle import Sessions
from flows.sessions.others.all_others import Others
from flows.sessions.others.model import Owned
from tests.support import hollow_images, variants
from tests.support.cluster_faults import DisturbedJournal
from tests.support.hub_of_others import POOR, TOKEN, HubOfOthers, hub_of_others
from tests.support.machine import home_with_gateway
from tests.support.moving import carry_out
from tests.support.processes import in_a_process
from tests.support.waiting import PATIENTLY

with lazily(globals()):  # 2 s of CPU, for which each test process would pay
    from prefect.server.api.server import SubprocessASGIServer

_LABELS = {
    "io.refit.profile": "light-minimal-deb12-py311",
    "io.refit.release": "2026a",
    "io.refit.access": variants.LIGHT.as_label(),
}
NAME = "hub--ada"


@dataclass(frozen=True)
class Scene:
    """The server of `ada`, on one of two images that work; `bad` is one whose server ends at once."""

    settings: Settings
    hub: HubOfOthers
    good: tuple[str, str]
    bad: str

    def reference(self, digest: str) -> str:
        return f"{self.settings.registry_host}/{self.settings.repository}@{digest}"

    def owned(self, name: str = NAME) -> Owned:
        owned = Others(self.settings).named(name)
        assert owned
        return owned

    @property
    def other(self) -> str:
        (image,) = {*self.good} - {self.owned().session.image}
        return image

    def line(self, to: str) -> Decision:
        return Decision(NAME, Action.migrate, self.owned().session.image, to)

    def move(self, to: str, name: str = NAME) -> Result:
        (decision,) = SessionPlanner(self.settings).plan([name], to)
        return carry_out(MoveExecutor.open(self.settings), decision)

    def is_on(self, digest: str) -> bool:
        server = self.hub.server("ada")
        return bool(server and server["ready"] and server["user_options"]["image"] == self.reference(digest))


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("others")
    with hollow_images.plain_registry(folder) as registry, home_with_gateway(folder / "home", registry) as home:
        proxy = home.home / "services/gateway/node_modules/configurable-http-proxy/bin/configurable-http-proxy"
        with hub_of_others(folder / "hub", proxy) as hub:
            token = folder / "token"
            token.touch(0o600)
            token.write_text(TOKEN)
            told = HubServers(api=hub.api, token_file=token, start_minutes=0.5)
            settings = home.model_copy(update={"others": OthersSettings(hub=told), "ready_timeout_seconds": 20.0})
            one, two, bad = (hollow_images.push(settings, word, _LABELS) for word in ("one", "two", "bad"))
            (hub.folder / "bad").write_text(bad)
            for person in ("ada", "bea", "Zoë"):
                hub.ask("POST", f"/users/{person}")
            scene = Scene(settings, hub, (one, two), bad)
            hub.start("ada", {"image": scene.reference(one), "size": "large"})
            yield scene


def test_it_is_seen_and_the_plan_says_what_is_left_out(scene: Scene) -> None:
    owned = scene.owned()
    assert owned.runs and owned.session.image in scene.good and not owned.trouble
    (line,) = plan_migration([NAME], scene.other, scene.settings)
    assert line.action is Action.migrate and "JupyterHub ada" in line.why and "no snapshot of its home" in line.why


def test_commands_list_it_and_plan_it_and_a_run_moves_it(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def refit(*words: str) -> str:
        result = CliRunner().invoke(app, words, env=variables(scene.settings), catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    image = scene.other
    (listed,) = [one for one in json.loads(refit("session", "list", "--json")) if one["session"]["name"] == NAME]
    assert listed["session"]["owned_by"] == "JupyterHub/ada/" and listed["running"] == "running"
    assert NAME in refit("migrate", "plan", "--to", image)
    for name, value in variables(scene.settings).items():
        monkeypatch.setenv(name, value)
    with SubprocessASGIServer() as server, temporary_settings({PREFECT_API_URL: server.api_url}):
        (result,) = migrate_sessions([NAME], image)
    assert result.moved, result
    assert scene.is_on(image) and "cleaned" in refit("migrate", "history", NAME)
    (session,) = others(scene.settings)
    assert session.ok and "1 sessions of others are seen, 1 of them" in session.seen


def test_the_hub_starts_it_with_the_new_image_and_its_other_options(scene: Scene) -> None:
    image = scene.other
    result = carry_out(MoveExecutor.open(scene.settings), scene.line(image))
    assert result.state is State.cleaned and result.downtime, result
    server = scene.hub.server("ada")
    assert server and server["user_options"] == {"image": scene.reference(image), "size": "large"}


def test_an_image_that_fails_is_taken_back(scene: Scene) -> None:
    before = scene.owned().session.image
    result = scene.move(scene.bad)
    assert result.state is State.rolled_back, result
    assert scene.is_on(before)


@pytest.mark.parametrize("sign", ["busy", "terminal"])
def test_a_kernel_that_works_or_a_terminal_keeps_it_from_being_stopped(scene: Scene, sign: str) -> None:
    before = scene.owned().session.image
    (scene.hub.folder / sign).touch()
    result = MoveExecutor.open(scene.settings).carry_out(scene.line(scene.other))
    (scene.hub.folder / sign).unlink()
    assert result.state is State.deferred and scene.is_on(before), result


def test_a_server_is_shown_no_token_that_is_good_for_anything_else(scene: Scene) -> None:
    (scene.hub.folder / "shown").unlink(missing_ok=True)
    assert carry_out(MoveExecutor.open(scene.settings), scene.line(scene.other)).state is State.cleaned
    shown = {*(scene.hub.folder / "shown").read_text().split("\n")} - {""}
    assert shown and not any(TOKEN in each for each in shown)
    for each in shown:
        told = httpx.get(f"{scene.hub.api}/user", headers={"Authorization": each}, **PATIENTLY).json()
        name_alone = {"read:users:name!user=ada", "read:users:groups!user=ada"}
        assert {*told["scopes"]} - name_alone == {"access:servers!server=ada/"}, told


def test_its_person_who_starts_it_in_the_middle_keeps_it(scene: Scene) -> None:
    before, image = scene.owned().session.image, scene.other
    options = {"image": scene.reference(before)}
    journal = DisturbedJournal(scene.settings, "stop", Phase.done, lambda: scene.hub.start("ada", options))
    executor = MoveExecutor(scene.settings, Sessions.open(scene.settings), journal)
    result = carry_out(executor, replace(scene.line(image), agreed=True))
    assert journal.disturbed
    assert result.state is State.rolled_back and scene.is_on(before), result


def test_killed_in_the_middle_the_next_run_ends_the_move(scene: Scene) -> None:
    image = scene.other
    line = replace(scene.line(image), agreed=True)

    def move() -> None:
        journal = DisturbedJournal(scene.settings, "stop", Phase.done, lambda: os.kill(os.getpid(), SIGKILL))
        carry_out(MoveExecutor(scene.settings, Sessions.open(scene.settings), journal), line)

    process = in_a_process(move)
    process.join()
    assert process.exitcode == -SIGKILL and scene.hub.server("ada") is None
    (result,) = recover_all(MoveExecutor.open(scene.settings))
    assert result.state is State.cleaned and scene.is_on(image), result


def test_a_named_server_and_a_person_with_any_name_move(scene: Scene) -> None:
    one, two = scene.good
    scene.hub.start("Zoë", {"image": scene.reference(one)}, "gpu")
    (name,) = [one.session.name for one in Others(scene.settings).see()[0] if "Zo" in one.session.owned_by]
    assert scene.move(two, name).state is State.cleaned
    server = scene.hub.server("Zoë", "gpu")
    assert server and server["user_options"]["image"] == scene.reference(two)


def test_one_whose_image_the_hub_does_not_tell_is_left_alone(scene: Scene) -> None:
    scene.hub.start("bea", {})
    assert "its options have no 'image'" in scene.owned("hub--bea").trouble
    with pytest.raises(RefitError, match="its options have no 'image'"):
        scene.move(scene.good[0], "hub--bea")


@pytest.mark.parametrize(("token", "said"), [(POOR, "lacks rights: read:servers"), ("expired", "refuses its token")])
def test_a_token_that_may_not_is_told_with_what_grants_it(scene: Scene, tmp_path: Path, token: str, said: str) -> None:
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text(token)
    hub = scene.settings.others.hub.model_copy(update={"token_file": file})
    seen, (problem,) = Others(scene.settings.model_copy(update={"others": OthersSettings(hub=hub)})).see()
    assert not seen and said in str(problem) and "c.JupyterHub.load_roles" in str(problem)
    file.chmod(0o644)
    _, (problem,) = Others(scene.settings.model_copy(update={"others": OthersSettings(hub=hub)})).see()
    assert "Others can read the token" in str(problem)
