"""The form of `build-profiles` in Prefect's UI, opened, filled in and submitted in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import log_in, page
from tests.support.main_job import Person, person, state
from tests.support.prefect_api import FINAL, prefect_client
from tests.support.waiting import wait_until

__all__ = ["page", "person"]


@pytest.fixture(scope="module")
def prefect(person: Person) -> Iterator[httpx.Client]:
    person.types("up")
    with prefect_client(person.settings) as client:
        yield client


@pytest.mark.long
def test_a_build_is_started_with_the_form(page: Page, prefect: httpx.Client, person: Person) -> None:
    ui = f"http://127.0.0.1:{person.settings.prefect_port}"
    deployment = prefect.get("/deployments/name/build-profiles/refit").json()["id"]
    log_in(page, person.settings)
    page.goto(f"{ui}/deployments/deployment/{deployment}/run")
    expect(page.get_by_text("Name of the release, e.g. 2026a.")).to_be_visible()
    page.locator("textarea").first.fill("2026a")
    page.get_by_role("button", name="list", exact=True).first.click()  # of the profiles
    page.get_by_role("button", name="Add item").first.click()
    page.locator("textarea").nth(1).fill("runtime-minimal-deb12-py311")
    page.get_by_role("button", name="Submit").click()
    page.wait_for_url(re.compile("tab=Runs"))

    newest = {"sort": "EXPECTED_START_TIME_DESC", "limit": 1, "flow_runs": {"deployment_id": {"any_": [deployment]}}}
    [run] = prefect.post("/flow_runs/filter", json=newest).json()
    assert run["parameters"]["profiles"] == ["runtime-minimal-deb12-py311"]
    wait_until(lambda: state(prefect, run["id"]) in FINAL)
    assert state(prefect, run["id"]) == "COMPLETED"
    page.goto(f"{ui}/flow-runs/flow-run/{run['id']}")
    expect(page.get_by_text("Completed").first).to_be_visible()
    page.get_by_text("Artifacts", exact=True).click()
    expect(page.get_by_text("images-2026a").first).to_be_visible()
