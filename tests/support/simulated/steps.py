"""A session, its containers and its home as the steps of a move see them; invariants are checked at every change."""

from __future__ import annotations

from dataclasses import dataclass, field

from flows.migrations.move import Do, End, Entry, GiveUp, Phase, Seen, Undo, decide
from flows.migrations.move_steps import STEPS, Step
from flows.sessions.model import Running

BY_NAME = {step.name: step for step in STEPS}


def undoing(step: Step) -> Undo:
    assert step.undo
    return Undo(step, step.undo)


class Broken(Exception):
    """A step could not do its work."""


class Occupied(Exception):
    """The last look has found work."""


@dataclass
class World:
    """A session, its containers and its home, as the steps change them; each change checks the invariants."""

    old: Running | None = Running.running
    old_has_home: bool = True
    new: Running | None = None
    new_has_home: bool = False
    session: bool = True
    should_run: bool = True
    on_new: bool = False
    snapshot: bool = False
    home: str = "old"
    saved: str = ""
    proven: bool = False
    busy: bool = False
    looked: bool = False
    shut: bool = False
    again: bool = False
    reverts: bool = False
    journal: list[Entry] = field(default_factory=list)

    @property
    def seen(self) -> Seen:
        return Seen(
            self.session, self.should_run, self.old, self.new, self.looked, again=self.again, reverts=self.reverts
        )

    def act(self, name: str) -> None:
        getattr(self, f"do_{name}")()
        both = self.old is Running.running and self.new is Running.running
        assert not (both and self.old_has_home and self.new_has_home), "I1: two containers with one home"
        assert self.old or self.on_new or not self.session, "I2: the old container is gone before the commit"

    def do_check(self) -> None: ...
    def do_pull(self) -> None: ...
    def do_rehearse(self) -> None: ...
    def do_answer(self) -> None: ...

    def do_create(self) -> None:
        self.new = self.new or Running.created

    def do_warm(self) -> None:
        assert not self.new_has_home
        self.new = Running.running

    def do_cool(self) -> None:
        self.new, self.new_has_home = Running.stopped if self.new else None, False

    def do_copy(self) -> None:
        self.snapshot, self.saved = True, self.home

    def do_look(self) -> None:
        if self.busy:
            raise Occupied
        self.looked = self.shut = True

    def do_reopen(self) -> None:
        self.shut = False

    def do_stop(self) -> None:
        assert self.looked or Entry("stop", Phase.intent) in self.journal[:-1], "I3: stopped without a look"
        assert not self.again, "I3: stopped, though its owner has started it again"
        self.old, self.old_has_home, self.shut = Running.stopped, False, False

    def do_snapshot(self) -> None:
        assert self.old is not Running.running, "a snapshot of a home in use"
        self.saved = self.home

    def do_revert(self) -> None:
        assert self.reverts and self.snapshot and self.saved == "old", "what is brought back must not be lost"
        assert self.old is not Running.running and not self.new_has_home, "a home in use goes back"
        self.home = "then"

    def do_reinstate(self) -> None:
        assert not (self.new is Running.running and self.new_has_home), "a home in use is replaced"
        if self.old is not Running.running or not self.old_has_home:
            self.home = self.saved

    def do_start(self) -> None:
        assert self.old is not Running.running, "I1: two containers with one home"
        assert self.snapshot and not (self.reverts and self.home == "old"), "started with the home as it was"
        self.new, self.new_has_home, self.home = Running.running, True, "touched by new"

    def do_verify(self) -> None:
        if self.new is not Running.running:
            raise Broken
        self.proven = True

    def do_commit(self) -> None:
        assert self.proven, "I2: committed before it was proven"
        self.on_new = True

    def do_clean(self) -> None:
        assert self.on_new
        self.old, self.snapshot = None, False

    def do_rewarm(self) -> None:
        assert self.session and self.should_run, "nothing that its owner ended comes back"
        if self.old is not Running.running:
            self.old, self.old_has_home = Running.running, False

    def do_halt(self) -> None:
        self.new, self.new_has_home = Running.stopped if self.new else None, False

    def do_restore(self) -> None:
        assert self.new is not Running.running
        if self.old is not Running.running or not self.old_has_home:
            self.home = self.saved

    def do_revive(self) -> None:
        assert self.session and self.should_run, "nothing that its owner ended comes back"
        self.old, self.old_has_home, self.shut = Running.running, True, False

    def do_forget(self) -> None:
        self.snapshot = False

    def do_discard(self) -> None:
        stopped = Entry("stop", Phase.intent) in self.journal
        assert not stopped or not self.should_run or Entry("revive", Phase.done) in self.journal, "removed too early"
        assert self.new is not Running.running, "what runs is not removed"
        self.new = None


CRASHES = ["crash before", "crash after"]
PEOPLE = ["owner stops", "owner starts", "owner deletes"]


def turn(world: World, upset: str) -> End | None:
    """One turn of the loop that carries moves out, with one upset."""
    meanwhile(world, upset)
    chosen = decide(world.journal, world.seen)
    if isinstance(chosen, End):
        return chosen
    if isinstance(chosen, GiveUp):
        world.journal.append(Entry(chosen.step.name, chosen.phase, chosen.reason))
        return None
    name = chosen.step.name if isinstance(chosen, Do) else chosen.undo
    world.journal.append(Entry(name, Phase.intent))
    if upset == "crash before":
        return None
    world.busy = upset == "somebody works"
    try:
        if upset == "fail":
            raise Broken
        world.act(name)
    except Occupied:
        world.journal.append(Entry(name, Phase.deferred, "somebody works"))
        return None
    except Broken:
        world.journal.append(Entry(name, Phase.failed, "it failed"))
        return None
    if name == "commit" or upset != "crash after":  # a commit and its line are one transaction
        world.journal.append(Entry(name, Phase.done))
    return None


def meanwhile(world: World, upset: str) -> None:
    if upset == "new dies" and world.new is Running.running:
        world.new = Running.stopped
    if upset == "time passes":
        world.looked = False
    if upset == "owner stops" and world.session:
        world.should_run, world.old, world.shut = False, world.old and Running.stopped, False
    if upset == "owner starts" and world.old is Running.stopped and world.new is not Running.running:
        world.should_run, world.old, world.old_has_home = True, Running.running, True
        world.again = Entry("stop", Phase.intent) in world.journal
    if upset == "owner deletes" and world.session:
        world.session, world.should_run, world.old = False, False, None
        world.new = Running.stopped if world.new else None
