"""The contract of engines, real or simulated: derive a class from `EngineContract` and give it its fixtures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flows.core.errors import RefitError
from flows.sessions.engine import Engine
from flows.sessions.model import HomeRef, Running, Session

ABSENT = f"sha256:{'0' * 64}"


def states(engine: Engine, session: Session) -> dict[str, Running]:
    return {container.name: container.running for container in engine.containers(session.name)}


class EngineContract:
    """Fixtures: `engine`; `session`, a new one at each call, whose image it can have; `another_home` of its user."""

    def test_of_a_new_session_there_is_no_container(self, engine: Engine, session: Session) -> None:
        assert engine.containers(session.name) == ()

    def test_a_created_container_doesnt_run_and_says_what_it_is(self, engine: Engine, session: Session) -> None:
        created = engine.create(session)
        assert engine.containers(session.name) == (created,)
        assert (created.name, created.session, created.generation) == (session.container, session.name, 1)
        assert (created.image, created.running) == (session.image, Running.created)
        assert created.made_from == session
        assert engine.by_hand(session) == ()

    def test_creating_again_changes_nothing(self, engine: Engine, session: Session) -> None:
        engine.create(session)
        engine.start(session.container)
        assert engine.create(session).running is Running.running
        assert len(engine.containers(session.name)) == 1

    def test_a_container_that_is_made_otherwise_is_left_alone(self, engine: Engine, session: Session) -> None:
        created = engine.create(session)
        with pytest.raises(RefitError, match="made with other options"):
            engine.create(replace(session, environment={"COLOUR": "blue"}))
        assert engine.containers(session.name) == (created,)

    def test_start_and_stop_can_be_repeated(self, engine: Engine, session: Session) -> None:
        engine.create(session)
        engine.stop(session.container, grace=5)
        for _ in range(2):
            engine.start(session.container)
            engine.start(session.container)
            assert states(engine, session) == {session.container: Running.running}
            engine.stop(session.container, grace=5)
            engine.stop(session.container, grace=5)
            assert states(engine, session) == {session.container: Running.stopped}

    def test_a_container_that_runs_is_not_removed(self, engine: Engine, session: Session) -> None:
        engine.create(session)
        engine.start(session.container)
        with pytest.raises(RefitError):
            engine.remove(session.container)
        assert states(engine, session) == {session.container: Running.running}

    def test_what_was_removed_can_be_removed_and_stopped_but_not_started(
        self, engine: Engine, session: Session
    ) -> None:
        engine.create(session)
        engine.remove(session.container)
        engine.remove(session.container)
        engine.stop(session.container, grace=5)
        assert engine.containers(session.name) == ()
        with pytest.raises(RefitError):
            engine.start(session.container)

    def test_generations_stand_side_by_side_lowest_first(self, engine: Engine, session: Session) -> None:
        generations = [replace(session, generation=number) for number in (1, 2, 10)]
        for generation in reversed(generations):
            engine.create(generation)
        assert [one.made_from for one in engine.containers(session.name)] == generations
        engine.start(generations[1].container)
        assert [one.running is Running.running for one in engine.containers(session.name)] == [False, True, False]
        assert {one.name for one in engine.containers()} >= {made.container for made in generations}

    def test_a_home_that_one_container_has_another_one_gets_only_when_that_has_ended(
        self, engine: Engine, session: Session
    ) -> None:
        one, two = (engine.create(replace(session, generation=number)).name for number in (1, 2))
        engine.start(one)
        with pytest.raises(RefitError):
            engine.start(two)
        assert states(engine, session) == {one: Running.running, two: Running.created}
        engine.stop(one, grace=5)
        engine.start(two)
        first, second = engine.containers(session.name)
        assert (first.running, second.running) == (Running.stopped, Running.running)
        assert first.started and first.ended and second.started and first.started <= first.ended <= second.started

    def test_generations_run_at_once_each_at_its_own_address(
        self, engine: Engine, session: Session, another_home: HomeRef
    ) -> None:
        # Each has a home of its own: two containers must never write into one.
        homes = enumerate((session.home, another_home), start=1)
        generations = [replace(session, generation=number, home=home) for number, home in homes]
        for generation in generations:
            engine.create(generation)
            engine.start(generation.container)
        addresses = {engine.address(generation.container, 8888) for generation in generations}
        assert len(addresses) == 2 and {port for _, port in addresses} == {8888}
        engine.stop(generations[0].container, grace=5)
        with pytest.raises(RefitError):
            engine.address(generations[0].container, 8888)

    def test_in_a_container_that_doesnt_run_nothing_answers(self, engine: Engine, session: Session) -> None:
        engine.create(session)
        with pytest.raises(RefitError), engine.dialogue(session.container, ["cat"]) as ask:
            ask("well?")

    def test_doors_and_programs_are_those_of_a_container_that_runs(self, engine: Engine, session: Session) -> None:
        engine.create(session)
        ports = [session.access.port or 0]
        for verb in (
            lambda: engine.block_ingress(session.container, ports),
            lambda: engine.allow_ingress(session.container),
            lambda: engine.execute(session.container, ["true"]),
        ):
            with pytest.raises(RefitError):
                verb()
        engine.start(session.container)
        for _ in range(2):
            reopen = engine.block_ingress(session.container, ports)
            engine.block_ingress(session.container, ports)
            assert engine.execute(session.container, ["true"]) == ""  # Refit's own way in is another
            reopen()
            reopen()
            engine.allow_ingress(session.container)

    def test_nobody_is_in_by_ssh_where_nobody_has_a_key(self, engine: Engine, session: Session) -> None:
        engine.create(session)
        for _ in range(2):
            engine.sshd.provide(session)
            assert engine.sshd.end_logins(session, ()) == 0
            engine.start(session.container)

    def test_files_that_were_made_by_hand_are_named_where_anybody_can_tell(
        self, engine: Engine, session: Session
    ) -> None:
        engine.create(session)
        engine.start(session.container)
        if engine.changed_files(session.container) is not None:  # else only its node knows
            engine.execute(session.container, ["touch", "/tmp/made-by-hand"])
            assert "/tmp/made-by-hand" in (engine.changed_files(session.container) or {})["added"]

    def test_a_container_can_be_favoured_as_often_as_one_likes_running_or_not(
        self, engine: Engine, session: Session
    ) -> None:
        engine.create(session)
        for favoured in (True, True, False, False):
            engine.favour(session.container, favoured)
        engine.start(session.container)
        for favoured in (True, True, False, False):
            engine.favour(session.container, favoured)
        assert states(engine, session) == {session.container: Running.running}

    def test_another_session_with_a_name_that_begins_alike_is_another(self, engine: Engine, session: Session) -> None:
        engine.create(replace(session, name=f"{session.name}-2"))
        assert engine.containers(session.name) == ()
        engine.remove(f"refit-{session.name}-2-1")

    def test_an_image_that_is_here_is_not_pulled_again(self, engine: Engine, session: Session) -> None:
        engine.pull(session.image)
        engine.pull(session.image)

    def test_an_image_that_nobody_has_is_neither_pulled_nor_used(self, engine: Engine, session: Session) -> None:
        with pytest.raises(RefitError):
            engine.pull(ABSENT)
        with pytest.raises(RefitError):
            engine.create(replace(session, image=ABSENT))
        assert engine.containers(session.name) == ()
