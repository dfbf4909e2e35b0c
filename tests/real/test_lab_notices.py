"""Refit's notices in JupyterLab in a real browser: shown, answered, and only then delivered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import Engine as Database

from flows.core.database import now, open_database
from flows.core.settings import Settings
from flows.core.settings.personal_builds import PersonalBuilds
from flows.core.settings.policy import Mode
from flows.images.registry import Registry
from flows.migrations.executor import MoveExecutor
from flows.migrations.move_steps import State
from flows.migrations.notifications import own_builds
from flows.migrations.notifications.notifier import Notifier
from flows.migrations.planning.rollout import Action, Decision, Reason
from flows.publishing.own_build_results import Outcome, Result
from flows.publishing.own_profiles import OwnProfile, OwnProfiles
from flows.sessions.events import Kind
from flows.sessions.history import History
from flows.sessions.homes.folders import folder_of
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Session
from flows.sessions.wishes import PreferenceStore
from tests.support.browser import open_page
from tests.support.drafts import check_drafts, type_drafts
from tests.support.lab import give_up_terminals, never_mind_the_server, open_terminal, type_in_terminal
from tests.support.machine import RegistryServer, home_with_gateway
from tests.support.moving import kernels, opened, terminals, to
from tests.support.variants import JUPYTER, variant
from tests.support.waiting import wait_until

NAME, NEW = "lou", f"sha256:{64 * '7'}"


@pytest.fixture(scope="module")
def settings(registry_server: RegistryServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """A page that stays open through a move needs an address that stays."""
    with home_with_gateway(tmp_path_factory.mktemp("notices") / "home", registry_server.port) as settings:
        yield settings


@pytest.fixture(scope="module")
def sessions(settings: Settings) -> Iterator[Sessions]:
    with opened(settings, NAME) as sessions:
        yield sessions


@pytest.fixture(scope="module")
def session(sessions: Sessions, jupyter_image: str) -> Session:
    return sessions.create(NAME, "jupyter-minimal-deb12-py311", "2026a", jupyter_image, JUPYTER)


@pytest.fixture
def page(sessions: Sessions, session: Session) -> Iterator[Page]:
    """JupyterLab as its owner has it open, with nothing of what was open in it before."""
    with open_page() as opened:
        opened.goto(f"{sessions.address(NAME)}&reset")
        expect(opened.get_by_role("tab", name="Launcher").first).to_be_visible()
        yield opened


@pytest.fixture
def database(settings: Settings) -> Database:
    return open_database(settings.database)


def test_a_notice_is_delivered_when_a_page_shows_it_and_its_buttons_are_wishes(
    settings: Settings, sessions: Sessions, session: Session, database: Database, request: pytest.FixtureRequest
) -> None:
    deadline = now() + timedelta(days=7)
    teller = Notifier(
        settings, sessions, database, lambda old, new: "+humanize 4.17.0", lambda name: deadline, lambda name: 8
    )
    line = Decision(NAME, Action.wait, session.image, NEW, Reason.busy, deadline=deadline)
    jupyter = sessions.jupyter(session)
    assert teller.tell([line]) == ()  # nobody is there
    assert NEW in jupyter.notices() and not jupyter.used()  # and none of this counts as somebody
    page: Page = request.getfixturevalue("page")
    notice = page.locator(".refit-notice")
    for text in ("lou is to get a new image", "+humanize 4.17.0", "less than 60 s", f"{deadline:%Y-%m-%d %H:%M}"):
        expect(notice).to_contain_text(text)
    wait_until(lambda: jupyter.notices()[NEW].shown)
    assert teller.tell([line]) == (NAME,)
    delivered = History(database).events(NAME, NEW, [Kind.noticed])
    assert [(event.what, event.data) for event in delivered] == [
        ("shown in JupyterLab", {"from": session.image, "page": True})
    ]
    near = replace(line, deadline=now() + timedelta(hours=1))
    wait_until(lambda: teller.tell([near]) == (NAME,))  # a reminder reaches a page that is open, and has asked lately
    assert teller.tell([near]) == ()
    expect(notice).to_contain_text("within 1 h")

    page.get_by_role("button", name="In 2 hours").click()
    expect(notice).to_have_count(0)
    wait_until(lambda: teller.hear([near]) == (NAME,))
    assert teller.hear([near]) == ()
    snoozed = PreferenceStore(database).all()[NAME].snoozed_until
    assert snoozed and timedelta(hours=1, minutes=58) < snoozed - now() <= timedelta(hours=2)

    later = replace(line, new=f"sha256:{64 * '8'}")
    wait_until(lambda: teller.tell([later]) == (NAME,))
    pin = (deadline - timedelta(days=1)).date()
    page.get_by_role("button", name=f"Not before {pin}").click()
    wait_until(lambda: teller.hear([later]) == (NAME,))
    wish = PreferenceStore(database).all()[NAME]
    assert (wish.mode, wish.until) == (Mode.pin, pin)


def test_the_end_of_a_build_is_told_in_sessions_of_its_owner_and_takes_no_other_notice_away(
    settings: Settings, sessions: Sessions, session: Session, database: Database, page: Page
) -> None:
    sessions.store.give_home(NAME, "ada")
    files = {"display.txt": b"x"}
    own = OwnProfile("mine", "ada", "jupyter-mine-deb12-py311", "2026a", files, (), now())
    OwnProfiles(database).take(own, PersonalBuilds())
    jupyter, notice = sessions.jupyter(session), page.locator(".refit-notice")
    own_builds.tell(settings, Result("mine", "eve", Outcome.built, now()))  # the name was hers until now
    jupyter.leave_notice("moves", "The session moves", "Soon.")
    own_builds.tell(settings, Result("mine", "ada", Outcome.built, now()))
    expect(notice).to_contain_text("The session moves")
    notice.get_by_role("button", name="Close").click()
    wait_until(lambda: jupyter.notices()["moves"].closed)

    own_builds.tell(settings, Result("mine", "ada", Outcome.failed, now(), "it prints a password"))
    expect(notice).to_contain_text("Your profile mine wasn't built")
    assert "password" not in str(notice.text_content())
    own_builds.tell(settings, Result("mine", "ada", Outcome.built, now() + timedelta(seconds=1)))
    expect(notice).to_contain_text("Your profile mine was built")
    expect(notice).to_have_count(1)
    notice.get_by_role("button", name="Close").click()
    expect(notice).to_have_count(0)


@pytest.mark.long
def test_what_a_move_has_ended_is_open_again_and_told_on_the_page_that_stayed_open(
    settings: Settings, sessions: Sessions, session: Session, jupyter_image: str, page: Page
) -> None:
    jupyter = sessions.jupyter(session)
    jupyter.write_notebook("open.ipynb", ["answer = 6 * 7", "print('the answer is', answer)"])
    page.goto(f"{sessions.url(session)}/lab/tree/open.ipynb")
    page.locator(".jp-Dialog button.jp-mod-accept").click()  # it asks which kernel to start
    open_terminal(page)
    size = type_in_terminal(page, folder_of(session.home), "before")
    give_up_terminals(page)
    page.locator(".lm-TabBar-tabLabel", has_text="open.ipynb").click()
    (old,) = wait_for_kernels(sessions, session)
    never_mind_the_server(page)
    new = variant(settings, Registry(settings), jupyter_image, settings.repository, "the next one")
    result = MoveExecutor.open(settings).carry_out(replace(to(sessions, NAME, new), agreed=True))
    assert result.state is State.cleaned, result.reason
    session = sessions.store.session(NAME)  # in another container
    (kernel,) = wait_for_kernels(sessions, session)
    assert kernel["name"] == old["name"] and kernel["id"] != old["id"]
    notice = page.locator(".refit-notice")
    expect(notice).to_contain_text("is on another image now")
    expect(notice).to_contain_text("Ended: the kernel python3 of open.ipynb; the terminal 1.")
    expect(notice).to_contain_text("Opened again, and empty: the kernel python3 of open.ipynb; the terminal 1.")
    notice.get_by_role("button", name="Close").click()
    page.locator(".jp-Notebook .jp-Cell").first.click()
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_text("Run All Cells", exact=True).click()
    expect(page.locator(".jp-OutputArea-output").last).to_contain_text("the answer is 42")
    assert [one["id"] for one in kernels(sessions, session)] == [kernel["id"]]
    assert type_in_terminal(page, folder_of(session.home), "after") == size
    assert terminals(sessions, session) == ["1"]
    with page.expect_response("**/refit/notices") as heard:  # the page has asked, and was told that it is closed
        page.reload()
    assert heard.value.json()[-1]["closed"]
    # Which tab is in front hangs on when JupyterLab has written that down.
    expect(page.locator(".lm-TabBar-tabLabel", has_text="open.ipynb").first).to_be_visible()
    expect(notice).to_have_count(0)


@pytest.mark.long
@pytest.mark.parametrize("asleep", [False, True], ids=["awake", "asleep"])
def test_what_was_typed_and_not_saved_is_on_the_page_after_a_move_and_can_be_saved(
    settings: Settings, sessions: Sessions, jupyter_image: str, page: Page, asleep: bool
) -> None:
    session = sessions.store.session(NAME)
    stem = "asleep" if asleep else "awake"
    drafts = type_drafts(page, sessions.jupyter(session), sessions.url(session), stem)
    never_mind_the_server(page)
    page.context.set_offline(asleep)  # a laptop that is closed hears nothing of the move, and is back after it
    new = variant(settings, Registry(settings), jupyter_image, settings.repository, f"for those who are {stem}")
    result = MoveExecutor.open(settings).carry_out(replace(to(sessions, NAME, new), agreed=True))
    assert result.state is State.cleaned, result.reason
    page.context.set_offline(False)
    notice = page.locator(".refit-notice")
    expect(notice).to_contain_text("is on another image now")
    notice.get_by_role("button", name="Close").click()
    check_drafts(page, drafts, folder_of(session.home))


def wait_for_kernels(sessions: Sessions, session: Session) -> list[dict[str, Any]]:
    wait_until(lambda: kernels(sessions, session))
    return kernels(sessions, session)
