"""Notebooks that a controller owns, on a real cluster: seen, moved, and brought back."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread

import pytest
import yaml

from flows.core.database import open_database
from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.core.settings.others import OthersSettings
from flows.images.registry import Registry
from flows.migrations.executor import MoveExecutor
from flows.migrations.journal import Journal
from flows.migrations.move import Phase
from flows.migrations.move_steps import State, StepName
from flows.migrations.planning.rollout import Action, Decision
from flows.migrations.recovery import recover_all
from flows.migrations.results import Result
from flows.migrations.rollouts.session_planner import SessionPlanner, plan_migration
from flows.sessions.activity.evidence import Verdict
from flows.sessions.others.all_others import Others, look_at_others
from flows.sessions.others.model import Owned, name_of
from tests.support import cluster_images, variants
from tests.support.cluster import NAMESPACE, REGISTRY, REPOSITORY, Lab, kubectl
from tests.support.cluster_moves import settings_for_cluster
from tests.support.notebooks import STOPPED, controller, image_of, notebook
from tests.support.processes import in_a_process
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.long]

_PROFILE = {"profile": "light-minimal-deb12-py311", "release": "2026a"}
NAME = name_of(NAMESPACE, "ada")


@dataclass(frozen=True)
class Scene:
    """The Notebook `ada` on one of two images that work; `bad` has a server that ends at once, `sidecar` has none."""

    settings: Settings
    good: tuple[str, str]
    bad: str
    sidecar: str

    @property
    def journal(self) -> Journal:
        return Journal(open_database(self.settings.database))

    def owned(self, name: str = NAME) -> Owned:
        owned = Others(self.settings).named(name)
        assert owned
        return owned

    def until_it_runs(self, name: str = NAME) -> Owned:
        wait_until(lambda: self.owned(name).runs)
        return self.owned(name)

    @property
    def other(self) -> str:
        (image,) = {*self.good} - {self.owned().session.image}
        return image

    def move(self, to: str, name: str = NAME) -> Result:
        (decision,) = SessionPlanner(self.settings).plan([name], to)
        return MoveExecutor.open(self.settings).carry_out(decision)

    def notes(self, name: str = NAME) -> dict[str, str]:
        """Step → what its line in the journal says, of the last move."""
        entries = self.journal.entries(self.journal.latest()[name])
        return {entry.step: entry.note for entry in entries if entry.phase is Phase.done}


def reference(digest: str) -> str:
    return f"{REGISTRY}/{REPOSITORY}@{digest}"


@pytest.fixture(scope="module")
def scene(cluster: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("notebooks")
    settings = settings_for_cluster(
        folder / "refit", engine="podman", others=OthersSettings(notebooks=(NAMESPACE,)), idle_minutes=0.01
    )
    registry = Registry(settings)
    images = [
        cluster_images.push(f"notebook-{name}", then, folder, **_PROFILE)
        for name, then in {"one": ":", "two": ":", "bad": "exit 3"}.items()
    ]
    for digest in images:
        variants.sign(settings, registry, registry.manifest(settings.repository, digest), {})
    cluster.claim("ada-home")
    with controller():
        notebook("ada", reference(images[0]), claim="ada-home")
        scene = Scene(settings, (images[0], images[1]), images[2], cluster.images["one"])
        scene.until_it_runs()
        yield scene
        # With all that the controller made for them: a kind that goes first leaves it to nobody.
        kubectl("delete", "notebooks", "--all", "--cascade=foreground", "--timeout=120s")


def test_it_is_seen_with_its_owner_and_the_plan_says_what_is_left_out(scene: Scene) -> None:
    owned = scene.owned()
    assert owned.session.image in scene.good and owned.runs and not owned.trouble
    (seen,) = look_at_others(scene.settings, Others(scene.settings), [owned.session])
    assert seen.verdict is Verdict.idle, seen
    (line,) = plan_migration([NAME], scene.other, scene.settings)
    assert line.action is Action.migrate and f"Notebook {NAMESPACE}/ada" in line.why
    assert "no snapshot of its home" in line.why and "no rehearsal" in line.why


def test_it_moves_and_keeps_its_home(scene: Scene) -> None:
    kubectl("exec", "ada-0", "-c", "ada", "--", "sh", "-c", "echo kept >/home/dev/notes")
    image = scene.other
    result = scene.move(image)
    assert result.state is State.cleaned, result.reason
    assert result.downtime and scene.owned().session.image == image and scene.owned().runs
    assert kubectl("exec", "ada-0", "-c", "ada", "--", "cat", "/home/dev/notes") == "kept\n"
    assert "no snapshot of the home" in scene.notes()[StepName.copy]
    assert image_of("ada") == reference(image)


def test_an_image_that_fails_is_taken_back(scene: Scene) -> None:
    before = image_of("ada")
    result = scene.move(scene.bad)
    assert result.state is State.rolled_back, result
    assert image_of("ada") == before and scene.owned().runs
    assert StepName.revive in scene.notes()


def test_an_image_that_is_never_pulled_is_taken_back(scene: Scene) -> None:
    before = scene.owned()
    gone = f"sha256:{'0' * 64}"
    registry = Registry(scene.settings)
    manifest = registry.manifest(REPOSITORY, scene.other)
    assert manifest
    executor = MoveExecutor.open(scene.settings)
    held = executor.sessions.alone(NAME)
    with held as lease:
        after = replace(before.session, image=gone, generation=2)
        move = executor.journal.begin(lease, before.session, after, "")
        result = executor.drive(lease, move, (True, True))
    assert result.state is State.rolled_back and "can't run" in result.reason, result
    assert scene.owned().session.image == before.session.image and scene.owned().runs


def test_somebody_at_work_is_not_disturbed(scene: Scene) -> None:
    before = image_of("ada")
    busy = "exec python3 -c 'while True: pass'"
    kubectl("exec", "ada-0", "-c", "ada", "--", "sh", "-c", f"({busy}) >/dev/null 2>&1 & echo $! >/tmp/busy")
    session = scene.owned().session
    line = Decision(NAME, Action.migrate, session.image, scene.other)
    result = MoveExecutor.open(scene.settings).carry_out(line)
    assert result.state is State.deferred and image_of("ada") == before, result
    kubectl("exec", "ada-0", "-c", "ada", "--", "sh", "-c", "kill $(cat /tmp/busy); rm /tmp/busy")


def _when(holds: object, act: object) -> Thread:
    thread = Thread(target=lambda: (wait_until(holds), act()), daemon=True)  # type: ignore[arg-type,operator]
    thread.start()
    return thread


def test_another_controller_that_patches_it_back_wins(scene: Scene) -> None:
    before, image = image_of("ada"), scene.other
    back = [{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": before}]
    fights = _when(
        lambda: image_of("ada") == reference(image),
        lambda: kubectl("patch", "notebook", "ada", "--type=json", "-p", json.dumps(back)),
    )
    result = scene.move(image)
    fights.join()
    assert result.state is State.rolled_back, result
    assert image_of("ada") == before and scene.until_it_runs()


def test_it_is_stopped_by_others_in_the_middle_and_stays_so_on_its_old_image(scene: Scene) -> None:
    before, image = image_of("ada"), scene.other
    culls = _when(
        lambda: image_of("ada") == reference(image),
        lambda: kubectl("annotate", "notebook", "ada", f"{STOPPED}=2026-11-26T05:00:00Z"),
    )
    result = scene.move(image)
    culls.join()
    assert result.state is State.deferred and "stopped" in result.reason, result
    assert image_of("ada") == before and not scene.owned().runs
    with pytest.raises(RefitError, match="stopped"):
        scene.move(image)
    kubectl("annotate", "notebook", "ada", f"{STOPPED}-")
    scene.until_it_runs()


def test_killed_in_the_middle_the_next_run_ends_the_move(scene: Scene) -> None:
    image = scene.other
    process = in_a_process(lambda: scene.move(image))
    wait_until(lambda: image_of("ada") == reference(image))
    process.kill()
    process.join()
    (result,) = recover_all(MoveExecutor.open(scene.settings))
    assert result.state is State.cleaned, result
    assert scene.owned().session.image == image and scene.owned().runs


def test_of_several_containers_its_own_is_patched(scene: Scene) -> None:
    one, two = scene.good
    name = name_of(NAMESPACE, "bea")
    notebook("bea", reference(one), sidecars={"oauth-proxy": reference(scene.sidecar)})
    scene.until_it_runs(name)
    result = scene.move(two, name)
    assert result.state is State.cleaned, result
    assert image_of("bea") == reference(two)
    notebook("cleo", reference(one), sidecars={"x": reference(one), "y": reference(one)})
    kubectl(
        "patch",
        "notebook",
        "cleo",
        "--type=json",
        "-p",
        '[{"op":"replace","path":"/spec/template/spec/containers/2/name","value":"z"}]',
    )
    (line,) = [line for line in plan_migration([], two, scene.settings) if line.session == name_of(NAMESPACE, "cleo")]
    assert line.action is Action.skip and "which of its containers" in line.why


def test_a_tag_and_a_dashboard_s_selection_are_brought_back_as_they_were(scene: Scene) -> None:
    name, tag = name_of(NAMESPACE, "dora"), f"{REGISTRY}/{REPOSITORY}:notebook-one"
    notebook("dora", tag, annotations={"notebooks.opendatahub.io/last-image-selection": "mine:1"})
    owned = scene.until_it_runs(name)
    assert owned.session.image == scene.good[0] and "mine:1" in owned.told
    result = scene.move(scene.bad, name)
    assert result.state is State.rolled_back and image_of("dora") == tag, result


def test_one_on_an_image_of_others_is_listed_and_left_alone(scene: Scene) -> None:
    notebook("eve", "quay.io/somebody/else:1")
    owned = scene.owned(name_of(NAMESPACE, "eve"))
    assert "isn't one of Refit's" in owned.trouble
    with pytest.raises(RefitError, match="isn't one of Refit's"):
        scene.move(scene.good[0], name_of(NAMESPACE, "eve"))


def token_of(account: str) -> str:
    """The token of a service account, in base64; empty until there is one."""
    mine = f'@.metadata.annotations.kubernetes\\.io/service-account\\.name=="{account}"'
    return kubectl("get", "secret", "-o", f"jsonpath={{.items[?({mine})].data.token}}")


def test_a_right_that_lacks_is_named_with_its_role(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kubectl("create", "serviceaccount", "nobody")
    wait_until(lambda: token_of("nobody"))  # a controller makes it
    token = token_of("nobody")
    config = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
    config["users"][0]["user"] = {"token": base64.b64decode(token).decode()}
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    seen, (problem,) = Others(scene.settings).see()
    assert not seen and "list notebooks" in str(problem)
    assert 'apiGroups: ["kubeflow.org"], resources: [notebooks], verbs: [list]' in str(problem)
