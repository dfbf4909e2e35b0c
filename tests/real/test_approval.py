"""A wave that waits for a person: the form in Prefect's UI, with the real server, worker and browser."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from flows import services
from flows.approve_wave import ask
from flows.core.formatting import short
from flows.core.settings.environment import variables
from flows.migrate_sessions import migrate_sessions
from flows.migrations.notifications.fleet import Question
from flows.migrations.planning.rollout import RolloutStatus
from flows.migrations.rollouts.control import steer
from flows.migrations.rollouts.store import Rollouts
from tests.support.browser import log_in, page
from tests.support.prefect_api import prefect_client
from tests.support.services import DEPLOY
from tests.support.simulated.fleet import Fleet, fleet
from tests.support.waiting import free_port, wait_until

__all__ = ["page"]
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@dataclass(frozen=True)
class Waiting:
    """A fleet of two, each in a wave of its own, between which a person is asked."""

    fleet: Fleet
    prefect: httpx.Client

    def migrate(self) -> int:
        """Move whoever may be moved now; how many were."""
        with self.fleet.in_charge():
            return sum(one.moved for one in migrate_sessions(once=True))

    def asked(self, state: str = "PAUSED") -> list[dict[str, Any]]:
        """The runs that ask, of those in this state."""
        body = {"flows": {"name": {"any_": ["approve-wave"]}}, "flow_runs": {"state": {"type": {"any_": [state]}}}}
        answer = self.prefect.post("/flow_runs/filter", json=body).raise_for_status().json()
        return list(answer)

    @property
    def standings(self) -> Rollouts:
        return Rollouts(self.fleet.database)


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waiting]:
    home = tmp_path_factory.mktemp("approval") / "home"
    with fleet(home, waves=[50, 100], approval=True) as sessions, pytest.MonkeyPatch.context() as patched:
        registry = f"127.0.0.1:{sessions.settings.registry_port}"
        more = {"registry": registry, "prefect_port": free_port(), "gateway": False, "catalog": home}
        sessions.settings = sessions.settings.model_copy(update=more)
        sessions.settings.model_fields_set.update(more)
        patched.setattr("flows.migrate_sessions.load_settings", lambda: sessions.settings)
        for number in range(2):
            sessions.add(number, sessions.image("old"))
        services.up(sessions.settings)
        try:
            mine = {"PATH": os.environ["PATH"], "REFIT_HOME": str(home), **variables(sessions.settings)}
            code = DEPLOY.format(module="flows.approve_wave", flow="approve_wave")
            subprocess.run([sys.executable, "-c", code], env=mine, check=True)
            said = services.prefect_environment(sessions.settings)
            told = {PREFECT_API_URL: said["PREFECT_API_URL"], PREFECT_API_AUTH_STRING: said["PREFECT_API_AUTH_STRING"]}
            # The threads of moves don't see these settings: their logs would start a server of their own.
            logging.disable(logging.INFO)
            with temporary_settings(told), prefect_client(sessions.settings) as client:
                yield Waiting(sessions, client)
        finally:
            logging.disable(logging.NOTSET)
            services.down(sessions.settings)


def test_the_next_wave_begins_once_somebody_has_filled_in_the_form(waiting: Waiting, page: Page) -> None:
    image = waiting.fleet.image("new")
    assert waiting.migrate() == 1
    assert waiting.migrate() == 0  # asked again, and yet there is one question
    wait_until(waiting.asked)
    [run] = waiting.asked()
    assert run["state"]["name"] == "Suspended" and run["parameters"]["image"] == image
    assert run["name"] == f"approve 50 % of {short(image)}"

    ui = f"http://127.0.0.1:{waiting.fleet.settings.prefect_port}"
    log_in(page, waiting.fleet.settings)
    page.goto(f"{ui}/flow-runs/flow-run/{run['id']}")
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_text("proven, and not approved yet")).to_be_visible()
    expect(page.get_by_text("moved 1, failed 0.")).to_be_visible()
    page.get_by_role("button", name="Submit").click()

    wait_until(lambda: waiting.asked("COMPLETED"))
    assert waiting.standings.all()[image].approved
    assert waiting.migrate() == 1 and not waiting.asked()


def test_a_question_is_taken_back_once_it_is_another_one_or_settled_in_the_shell(waiting: Waiting) -> None:
    image = waiting.fleet.image("newer")
    assert waiting.migrate() == 1
    wait_until(waiting.asked)
    [first] = waiting.asked()
    ask([Question(image, first["parameters"]["wave"], "failed")])  # whoever looks at the old form must not answer it
    [before] = waiting.asked("CANCELLED")
    assert before["id"] == first["id"]
    wait_until(waiting.asked)
    assert [run["parameters"]["shown"] for run in waiting.asked()] == ["failed"]
    steer("abort", image, waiting.fleet.settings, "ann")
    assert waiting.migrate() == 0
    assert not waiting.asked()
    assert {run["parameters"]["image"] for run in waiting.asked("CANCELLED")} == {image}
    assert len(waiting.asked("CANCELLED")) == 2 and waiting.standings.way(image) is RolloutStatus.aborted
