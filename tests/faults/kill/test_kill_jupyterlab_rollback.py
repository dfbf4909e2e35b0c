"""A real JupyterLab goes back to a snapshot, with its volume: whole, and killed in the middle of it.

In a pool and in folders. Home and volume go back as one set, or stay as they were as one set.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from flows.core.database import open_database
from flows.core.settings import Settings
from flows.images.registry import Registry
from flows.migrations.journal import Journal
from flows.migrations.move import Phase
from flows.migrations.move_steps import State
from flows.migrations.planning.rollout import Action, Decision
from flows.migrations.snapshots import snapshot_actions
from flows.migrations.snapshots.roll_back import InUse, foresee, roll_back
from flows.sessions.homes.folders import beside, folder_of
from flows.sessions.homes.volumes import Wanted, parts
from flows.sessions.ide.jupyter import Jupyter
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Running
from flows.sessions.snapshots.model import Kind, Snapshot
from tests.support.killing import NAME, Scene, move_until_killed, resume, resume_until_killed
from tests.support.machine import FIRST, RegistryServer, private_home
from tests.support.moving import check_no_gap, furnish, kernels, manifest
from tests.support.pools import smallest_pool
from tests.support.variants import JUPYTER, variant

pytestmark = pytest.mark.long
OWN = (".cache", ".ipython", ".jupyter", ".local")  # what JupyterLab and its kernels write
SPOILS = ["sh", "-c", "echo spoiled >>project/work.py; echo spoiled >>/data/rows; exit 3"]
STATE = "print(open('state').read(), open('/data/rows').read(), end='')"


@pytest.fixture(scope="module", params=["pool", "folder"])
def lab(
    request: pytest.FixtureRequest,
    registry: Registry,
    jupyter_image: str,
    shared: Settings,
    registry_server: RegistryServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Scene]:
    """A JupyterLab with a volume, and an image that spoils both and ends."""
    folder = tmp_path_factory.mktemp("back") / "home"
    pool = smallest_pool(folder) if request.param == "pool" else nullcontext()
    with private_home(folder, registry_server.port, stop_grace_seconds=10.0) as settings, pool:
        sessions, journal = Sessions.open(settings), Journal(open_database(settings.database))
        bad = variant(shared, registry, jupyter_image, shared.repository, "bad", SPOILS)
        volumes = [Wanted("data", "/data")]
        sessions.create(NAME, FIRST, "2026a", jupyter_image, JUPYTER, volumes=volumes)
        furnish(sessions, NAME)
        yield Scene(settings, sessions, journal, (jupyter_image, jupyter_image), bad, OWN)
        sessions.remove(NAME, purge=True)


@pytest.fixture
def then(lab: Scene) -> Iterator[Snapshot]:
    """A snapshot, since which a person has worked in the session: in its home, in its volume, in a kernel."""
    jupyter = jupyter_of(lab)
    jupyter.write_notebook("work.ipynb", ["6 * 7"])
    jupyter.execute("open('state', 'w').write('then'); open('/data/rows', 'w').write('1 then')")
    made = snapshot_actions.take(lab.sessions, NAME, "ada", called="then")
    jupyter.write_notebook("work.ipynb", ["'another one'"])
    jupyter.open_document("work.ipynb", "work.ipynb", "notebook", "python3")
    changes = "import os; os.remove('project/blob'); open('since', 'w').write('kept')"
    more = "open('state', 'w').write('now'); open('/data/rows', 'w').write('2 now'); open('/data/more', 'w').close()"
    jupyter.execute(f"{changes}; {more}")
    yield made
    for one in snapshots(lab):
        snapshot_actions.remove(lab.sessions, NAME, one.id, "ada")
    lab.sessions.execute(NAME, ["sh", "-c", "rm -f since /data/more; touch project/blob"])


def jupyter_of(lab: Scene) -> Jupyter:
    session = lab.sessions.store.session(NAME)
    lab.sessions.wait_ready(session)
    return lab.sessions.jupyter(session)


def snapshots(lab: Scene) -> tuple[Snapshot, ...]:
    return snapshot_actions.all_of(lab.sessions, lab.sessions.store.session(NAME))


def content(lab: Scene) -> list[object]:
    """Home and volume, as they are."""
    return [manifest(folder_of(part.ref), OWN) for part in parts(lab.sessions.store.session(NAME))]


def content_of(lab: Scene, snapshot: str) -> list[object]:
    folder = Path(lab.sessions.homes.snapshot_place(NAME, snapshot))
    return [manifest(beside(part, folder), OWN) for part in parts(lab.sessions.store.session(NAME))]


def safety(lab: Scene) -> Snapshot:
    [one] = [one for one in snapshots(lab) if one.kind is Kind.safety]
    return one


def check(lab: Scene, expected: State, state: str) -> None:
    """The session runs in one container, a kernel in it sees this state, and nothing of the move is left open."""
    move = lab.journal.latest()[NAME]
    assert move.state is expected, move.reason
    check_no_gap(lab.journal.entries(move))
    assert not lab.journal.unfinished()
    session = lab.sessions.store.session(NAME)
    [container] = lab.sessions.engine.containers(NAME)
    assert container.made_from == session and container.running is Running.running
    assert jupyter_of(lab).execute(STATE) == state


def back(lab: Scene, image: str = "") -> Decision:
    old = lab.sessions.store.session(NAME).image
    return Decision(NAME, Action.migrate, old, image or old, agreed=True)


def test_home_and_volume_go_back_together_and_forth_again(lab: Scene, then: Snapshot) -> None:
    before, [kernel] = content(lab), kernels(lab.sessions, lab.sessions.store.session(NAME))
    foreseen = foresee(lab.settings, NAME, "then")
    assert foreseen.work and foreseen.runs
    assert {"changed: state", "new: since", "gone: project/blob", "changed: rows (volume data)"} <= {*foreseen.changed}
    with pytest.raises(InUse):  # its kernel has a state that a stop would lose
        roll_back(lab.settings, NAME, "then", "ada")
    assert content(lab) == before and [one["id"] for one in kernels_of(lab)] == [kernel["id"]]
    assert snapshots(lab) == (then,)

    result = roll_back(lab.settings, NAME, "then", "ada", force=True)
    assert result.moved, result.reason
    assert content(lab) == content_of(lab, then.id) != before
    check(lab, State.cleaned, "then 1 then")
    kept = safety(lab)
    assert content_of(lab, kept.id) == before and kept.volumes == ("data",)
    assert "6 * 7" in lab.sessions.execute(NAME, ["cat", "work.ipynb"])

    result = roll_back(lab.settings, NAME, kept.name, "ada", force=True)
    assert result.moved, result.reason
    assert content(lab) == before
    check(lab, State.cleaned, "now 2 now")


def kernels_of(lab: Scene) -> list[dict[str, object]]:
    return kernels(lab.sessions, lab.sessions.store.session(NAME))


@pytest.mark.parametrize("phase", [Phase.intent, Phase.done])
def test_killed_while_it_goes_back_it_arrives_and_has_kept_what_was_there(
    lab: Scene, then: Snapshot, phase: Phase
) -> None:
    before = content(lab)
    move_until_killed(lab.settings, back(lab), "revert", phase, then.id)
    resume_until_killed(lab, "verify")  # the process that recovers is killed as well, after a cell was executed
    resume(lab.settings)
    assert content(lab) == content_of(lab, then.id) != before
    check(lab, State.cleaned, "then 1 then")
    assert content_of(lab, safety(lab).id) == before


@pytest.mark.parametrize("phase", [Phase.intent, Phase.done])
def test_killed_while_that_is_undone_home_and_volume_are_as_they_were(lab: Scene, then: Snapshot, phase: Phase) -> None:
    """The image spoils home and volume once they have gone back, and ends."""
    before = content(lab)
    move_until_killed(lab.settings, back(lab, lab.bad), "reinstate", phase, then.id)
    resume(lab.settings)
    assert content(lab) == before
    check(lab, State.rolled_back, "now 2 now")
    assert snapshots(lab) == (then,)
