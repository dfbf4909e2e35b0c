"""The contract of trials of images beside sessions: derive a class from `TrialsContract` and give it its fixtures."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from multiprocessing import get_context

import pytest

from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.sessions import engines
from flows.sessions.model import HOME, Session
from flows.sessions.trial import REHEARSAL, NoTrial, Trial, Trials
from tests.support.engine_contract import ABSENT
from tests.support.processes import in_a_process
from tests.support.waiting import wait_until

NOTES = f"{HOME}/notes"
# Bytes that a trial may have in these tests, in gigabytes as the setting takes them.
MEMORY_GB = 0.25
_EATS = "print(len(bytearray(1 << 30)))"
_MOMENTS = ["prepared", "running"]


def read(trial: Trial, path: str) -> str:
    """The text of a file in a trial; empty: there is none."""
    return trial.execute(["sh", "-c", f"if [ -e {path} ]; then cat {path}; fi"])


class TrialsContract:
    """Fixtures: `make`, which makes trials by settings that differ from the usual ones; `session`, a new one at each
    call, as it shall be, with the text `one` in the file `notes` of its home; `own_notes`, the text of that file now;
    `ends`, an image whose program says `broken` and ends; `left`, what is there of trials of the session; `copies`,
    whether the copy of a home takes the room of the home.
    """

    @pytest.fixture
    def trials(self, make: Callable[..., Trials]) -> Trials:
        return make()

    @pytest.fixture(autouse=True)
    def nothing_is_left(self, left: Callable[[], list[str]], own_notes: Callable[[], str]) -> Iterator[None]:
        """After each test, nothing of a trial is there, and the home is as it was."""
        yield
        wait_until(lambda: left() == [])
        assert own_notes() == "one"

    @contextmanager
    def running(self, trials: Trials, session: Session) -> Iterator[Trial]:
        with trials.begin(session) as trial:
            trial.start()
            yield trial

    def test_it_knows_that_it_is_none_to_work_in_and_has_no_privileges(self, trials: Trials, session: Session) -> None:
        with self.running(trials, session) as trial:
            assert trial.ended() == ""
            assert trial.execute(["sh", "-c", f"echo ${REHEARSAL} $REFIT_SESSION"]) == f"1 {session.name}\n"
            assert trial.execute(["id", "-u"]) == f"{session.uid}\n"
            status = trial.execute(["cat", "/proc/self/status"])
            told = dict(line.split(":\t") for line in status.splitlines())
            assert {int(told[f"Cap{kind}"], 16) for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {0}
            assert told["NoNewPrivs"] == "1"

    def test_what_it_writes_is_in_its_copy_of_the_home_alone(
        self, trials: Trials, session: Session, own_notes: Callable[[], str]
    ) -> None:
        with self.running(trials, session) as trial:
            assert read(trial, NOTES) == ("one" if trials.with_home else "")
            trial.execute(["sh", "-c", f"printf spoiled >{NOTES}"])
            assert (read(trial, NOTES), own_notes()) == ("spoiled", "one")

    def test_its_token_is_its_own(self, make: Callable[..., Trials], session: Session) -> None:
        tokens = set()
        for _ in range(2):
            with self.running(make(), session) as trial:
                tokens.add(trial.execute(["sh", "-c", 'cat "$REFIT_TOKEN_FILE"']))
        assert len(tokens) == 2 and all(len(token) >= 32 and not token.isspace() for token in tokens)

    def test_programs_get_their_input_and_are_bounded(self, trials: Trials, session: Session) -> None:
        with self.running(trials, session) as trial:
            assert trial.execute(["cat"], stdin="as it came\n") == "as it came\n"
            for argv, limit in (
                (["sh", "-c", "exit 3"], 60),
                (["sleep", "60"], 1),
                (["sh", "-c", "while :; do cat /proc/self/maps; done"], 60),
            ):
                with pytest.raises(RefitError):
                    trial.execute(argv, limit=limit)
            assert trial.execute(["cat"], stdin="still there\n") == "still there\n"

    def test_its_memory_is_bounded(self, trials: Trials, session: Session) -> None:
        with self.running(trials, session) as trial:
            assert trial.execute(["python3", "-c", _EATS.replace("30", "20")]) == f"{1 << 20}\n"
            with pytest.raises(RefitError):
                trial.execute(["python3", "-c", _EATS])

    def test_an_image_whose_program_ends_says_so_in_its_last_words(
        self, trials: Trials, session: Session, ends: str
    ) -> None:
        with self.running(trials, replace(session, image=ends)) as trial:
            wait_until(lambda: trial.ended() != "")
            wait_until(lambda: "broken" in trial.last_words())
            with pytest.raises(RefitError):
                trial.execute(["true"])

    def test_an_image_that_nobody_has_is_not_tried(self, trials: Trials, session: Session) -> None:
        with pytest.raises(RefitError), trials.begin(replace(session, image=ABSENT)):
            pytest.fail("there is nothing to try")

    def test_a_home_that_is_too_large_to_copy_is_told(
        self, make: Callable[..., Trials], session: Session, copies: bool
    ) -> None:
        trials = make(rehearsal_copy=0.0)
        if copies:
            with pytest.raises(NoTrial, match="a copy may take 0 MB"), trials.begin(session):
                pytest.fail("there is no room for the copy")
        else:
            with self.running(trials, session) as trial:
                assert trial.ended() == ""

    def test_one_that_fails_inside_leaves_nothing(
        self, trials: Trials, session: Session, left: Callable[[], list[str]]
    ) -> None:
        with pytest.raises(ZeroDivisionError), self.running(trials, session):
            assert left() != []
            raise ZeroDivisionError

    def test_two_of_one_session_do_not_meet(self, make: Callable[..., Trials], session: Session) -> None:
        with ExitStack() as stack:
            first = stack.enter_context(self.running(make(), session))
            first.execute(["sh", "-c", f"printf first >{NOTES}"])
            with self.running(make(), session) as second:
                second.execute(["sh", "-c", f"printf second >{NOTES}"])
                assert (read(first, NOTES), read(second, NOTES)) == ("first", "second")
            assert read(first, NOTES) == "first" and first.ended() == ""

    @pytest.mark.parametrize("moment", _MOMENTS)
    def test_what_a_killed_one_has_left_is_removed_by_whoever_sweeps(
        self, make: Callable[..., Trials], session: Session, left: Callable[[], list[str]], moment: str
    ) -> None:
        reached = get_context("fork").Event()

        def work() -> None:
            with make().begin(session) as trial:
                if moment == "running":
                    trial.start()
                reached.set()
                signal.pause()

        process, sweeper = in_a_process(work), make()
        try:
            wait_until(lambda: reached.is_set() or not process.is_alive())
            assert reached.is_set() and sweeper.sweep() == ()  # it is under way
            had = left()
        finally:
            os.kill(process.pid or 0, signal.SIGKILL)
            process.join()
        assert left() == had and (had or (moment == "prepared" and not sweeper.with_home))
        assert (sweeper.sweep(), sweeper.sweep()) == ((session.name,) if had else (), ())


def maker(settings: Settings) -> Callable[..., Trials]:
    """Makes the trials of an engine, by these settings and by others that differ from them."""

    def make(**more: object) -> Trials:
        changed = tight(settings, **more)
        return engines.trials(changed, engines.homes(changed))

    return make


def tight(settings: Settings, **more: object) -> Settings:
    """Settings whose trials have little memory."""
    return settings.model_copy(update={"rehearsal_memory": MEMORY_GB, **more})
