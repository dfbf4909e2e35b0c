"""The verbs that sessions and migrations need of whatever runs containers, and of whatever keeps homes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NoReturn, Protocol

from flows.core.programs.command import FOREIGN_OUTPUT
from flows.sessions.homes.volumes import DiskUse, Wanted
from flows.sessions.model import Container, HomeRef, Session, TokenRef, Volume


class Engine(Protocol):
    """Where sessions run. Every verb can be repeated: work that is done already is no error.

    Failures that a person can mend are `RefitError`.
    """

    on_this_machine: bool
    """Whether containers run here: they take this machine's memory and disk, and their files can be read here."""

    at_once: int
    """How many sessions are moved at the same time at most: more would only make each of them wait longer."""

    @property
    def sshd(self) -> Sshd:
        """The sshd of each session."""

    def containers(self, session: str = "") -> tuple[Container, ...]:
        """All containers that Refit made, or those of one session, lowest generation first."""

    def pull(self, image: str) -> None:
        """Bring the image with this digest to where it will run."""

    def create(self, session: Session) -> Container:
        """Create the container of this session and generation without starting it."""

    def start(self, container: str) -> None:
        """Start a created or stopped container, with its home.

        Raises:
            RefitError: another container may write into that home.
        """

    def binds_late(self) -> bool:
        """Whether a home can come into a container that runs already."""

    def has_place(self, session: Session) -> bool:
        """Whether a container can run beside another one of its session with the GPUs of that, and needs no others."""

    def warm(self, session: Session, wait: bool = True) -> None:
        """Start a container that doesn't run and whose home comes later.

        If so wished, this waits until it waits for nothing but that; else it gets its home when it is so far.
        """

    def favour(self, container: str, favoured: bool) -> None:
        """Give a running container more of the cores than other sessions where they are short, or take that back.

        It lasts until the container ends at most. One that doesn't run is left as it is.
        """

    def stop(self, container: str, grace: float, settle: bool = True) -> None:
        """SIGTERM to every process in it, up to `grace` seconds, then SIGKILL; nothing of it has the home any more.

        If it is to `settle`, the engine's further work for the end of a container is waited for.
        """

    def childless(self, container: str) -> bool:
        """Whether the main program of a running container has started nothing that still runs; no: nobody knows.

        Shells at terminals needn't be counted: they aren't kernels.
        """

    def remove(self, container: str) -> None:
        """Remove a container; its home stays."""

    def address(self, container: str, port: int) -> tuple[str, int]:
        """Host and port at which this port of a running container is reached from here; each start may change it."""

    def by_hand(self, session: Session) -> tuple[str, ...]:
        """Changes by hand to a session's container, each in words."""

    def changed_files(self, container: str) -> Mapping[str, Collection[str]] | None:
        """Kind of change → paths of a container that its image hasn't, or has otherwise; none: only its node knows."""

    def execute(
        self, container: str, argv: Sequence[str], stdin: str = "", limit: float = 600.0, most: int = FOREIGN_OUTPUT
    ) -> str:
        """Run a program inside a running container, as its user; returns its output.

        It is ended after `limit` seconds, and after `most` bytes of output.
        """

    def dialogue(
        self, container: str, argv: Sequence[str], limit: float = 600.0
    ) -> AbstractContextManager[Callable[[str], str]]:
        """Let a program inside a running container answer lines with lines, as its user, `limit` seconds at most."""

    def block_ingress(self, container: str, ports: Sequence[int]) -> Callable[[], None]:
        """Let nothing more come in through these ports of a running container; returns what undoes it at once.

        Connections stay, and wait.
        """

    def allow_ingress(self, container: str) -> None:
        """Undo every `block_ingress` of a running container, also those of a process that has died."""

    def attach(self, container: str, argv: Sequence[str], terminal: bool) -> NoReturn:
        """Let this process become a program inside a running container, with a terminal of its own if so wished."""

    def logs(self, container: str, lines: int = 100) -> str:
        """The last lines that the container wrote."""


# Seconds in which keys come to a session whose programs don't hold them up.
KEYS_SECONDS = 120.0


class Sshd(Protocol):
    """The sshd of each session, which reads files of Refit's own (`own_folder.ssh`). Every verb can be repeated."""

    def check(self, session: Session) -> None:
        """Find out whether people may be let into a session by ssh where it runs.

        Raises:
            RefitError: nothing keeps others from its sshd, or it runs in what was made without one.
        """

    def provide(self, session: Session, wait: float = KEYS_SECONDS) -> None:
        """Let the sshd of a session, and those of its later generations, read these files as they are now.

        `wait`: seconds in which a session that runs has to have it, also where this call has changed nothing; 0: none.

        Raises:
            RefitError: a session that runs hasn't got it in time, or it has keys, and nothing keeps others from it.
        """

    def is_told(self, session: Session) -> bool:
        """Whether nothing is left to provide: the session was told of its folder as it is now, or doesn't run.

        Raises:
            RefitError: nobody can tell just now.
        """

    def start(self, session: Session) -> None:
        """Start it in the container of a session that runs without.

        Raises:
            RefitError: its image has none.
        """

    def present(self, container: str) -> bool:
        """Let the sshd in a container that runs show the session's host certificate; no: it runs none yet.

        Raises:
            RefitError: it was started otherwise than Refit's images do.
        """

    def outdated(self, addresses: Mapping[str, str]) -> frozenset[str]:
        """The sessions of these that aren't at this IP address any more, as far as nobody has seen to that.

        Raises:
            RefitError: nobody can tell just now.
        """

    def end_logins(self, session: Session, good: Collection[str], kept: Collection[tuple[str, int]] = ()) -> int:
        """End the connections to it by other keys than those with these fingerprints; returns how many there were.

        An engine that can't tell which key has opened a connection ends all but those that are `kept`.

        Args:
            session: the session.
            good: fingerprints of the keys that it knows now.
            kept: the other ends (address, port) of connections that go on, whatever their key here is.

        Raises:
            RefitError: nobody knows by which keys they came in.
        """


class Tokens(Protocol):
    """The tokens of sessions, by which their IDEs let their people in. Every verb can be repeated."""

    def token_of(self, name: str) -> TokenRef:
        """The token of the session `name`, there or not; raises `IllegalName` if no session can be called so."""

    def make(self, session: Session) -> None:
        """Make the token of a session, unless it has one."""

    def read(self, session: Session) -> str:
        """The token of a session; kept out of logs from now on."""

    def forget(self, name: str) -> None:
        """Remove the token of a session that goes."""


class Homes(Protocol):
    """Where homes and volumes are kept. A session's own home and volumes are one set: snapshots are of all of it, or of
    none.

    Every verb can be repeated. Failures that a person can mend are `RefitError`; a copy for which there is no room is
    `homes.room.NoRoom`.
    """

    keeps_snapshots: bool
    """Whether snapshots are taken. Where none are, moves do without, and all verbs of snapshots refuse."""

    def home_of(self, name: str) -> HomeRef:
        """The home of the session `name`, there or not.

        Raises:
            IllegalName: no session can be called so.
        """

    def owners(self) -> Mapping[str, int]:
        """Home → the uid that owns it, of all that are there, whether or not anybody remembers them."""

    def make(self, name: str, uid: int) -> HomeRef:
        """The home of a session, made if need be: its user's alone.

        Raises:
            RefitError: there is one of that name that belongs to another uid.
        """

    def volumes(self, session: str) -> Mapping[str, HomeRef]:
        """The volumes of a session that are there, also of one that is gone: name → volume."""

    def shared(self) -> Mapping[str, HomeRef]:
        """The volumes that sessions share: name → volume."""

    def make_shared(self, name: str) -> HomeRef:
        """Make a volume for sessions to share: all of them read and write what any of them makes there.

        Raises:
            RefitError: there is one of that name, or none can be had by many sessions.
        """

    def mounted(self, session: str, mounts: Wanted) -> Volume:
        """A volume that a session is to have: the shared one of that name, if there is one, else its own.

        Raises:
            RefitError: there are both, or sessions can't share it so.
        """

    def make_volumes(self, session: Session) -> None:
        """Make the volumes of a session that it owns, if need be.

        Raises:
            RefitError: one belongs to another uid, or one that it shares is gone.
        """

    def draft_clone(self, source: Session, id: str, new: Session) -> None:
        """Copy a snapshot of a session for a new one, which has neither home nor volumes yet.

        Secrets that either one's profile names are left out.

        Args:
            source: the session of the snapshot.
            id: the snapshot.
            new: the new session, whose user may be another one in the end.

        Raises:
            RefitError: there is no room, or it takes too long; the rest of it, `remove` removes.
        """

    def finish_clone(self, new: Session, old: int) -> None:
        """Let the copies belong to the new session's user, in the place of `old`, and be its home and volumes."""

    def disk_use(self, session: Session) -> Sequence[DiskUse]:
        """The disk that home and own volumes of a session take; those are left out of which nobody knows it."""

    def disk_limit(self, own: int | None) -> int | None:
        """Bytes that each home of a person may take; none: nothing bounds it.

        Args:
            own: their own limit, 0: there is none for them; none: as of everybody.
        """

    def remove_volume(self, volume: HomeRef) -> None:
        """Remove one volume for good, if Refit has made it; snapshots of it stay with those of the home."""

    def remove(self, name: str) -> None:
        """Remove a home, its volumes and all snapshots for good."""

    def check_room(self, session: Session) -> None:
        """Find out before a move whether a snapshot of this session's home and volumes can be taken.

        Raises:
            RefitError: it can't.
        """

    def snapshot_cost(self, session: Session) -> int:
        """Bytes that a snapshot of home and volumes copies; 0: it shares all with them.

        Raises:
            RefitError: they can't be copied.
        """

    def prices(self) -> Mapping[str, str]:
        """Session → what a move does to its home besides, and what its snapshots cost, in words, where that is news."""

    def own_size(self, session: Session, id: str) -> int | None:
        """Bytes that nothing else has than this snapshot, where it shares any; none: nobody knows."""

    def touched(self, session: Session, id: str) -> tuple[str, ...] | None:
        """The paths that aren't as in the snapshot, where that is known at once; none: only `differences` can tell."""

    def spare(self, session: Session, most: int) -> Session:
        """Copy home and volumes for a rehearsal; the session may run.

        Args:
            session: the session with the home and volumes; by its name `forget_spare` removes the copies.
            most: bytes that all copies may take, if they can't share them with what is there.

        Returns:
            The session as it can be rehearsed: with the copies, and read-only what it shares.

        Raises:
            NoRoom: they would take more, or more than there is.
        """

    def forget_spare(self, name: str) -> None:
        """Remove the copies of a session's home and volumes that were made for a rehearsal."""

    def prepare(self, session: Session, id: str, others: Collection[str] = ()) -> None:
        """Let the next verbs about a snapshot be quick, until `release`: a move is about to stop the session.

        Args:
            session: the session with the home and volumes.
            id: the snapshot, which isn't there yet.
            others: snapshots that are there, and are needed as well.
        """

    def release(self, session: str) -> None:
        """End what `prepare` has begun, if anything."""

    def copy(self, session: Session, id: str) -> None:
        """Begin the snapshot `id` while the session runs; `delta` brings in later changes."""

    def delta(self, session: Session, id: str) -> None:
        """Make the snapshot equal to home and volumes of a session that is stopped, copied before or not."""

    def snapshot_place(self, session: str, id: str) -> str:
        """Where a person finds the snapshot `id` of a session's home, there or not; to be shown, not to be opened."""

    def has_snapshot(self, session: str, id: str) -> bool:
        """Whether there is a snapshot `id` of a session's home."""

    def differences(
        self, session: Session, id: str, except_paths: Collection[str] = (), *, at_a_glance: bool = False
    ) -> tuple[str, ...]:
        """The differences between the snapshot and home and volumes, each in words; empty: none.

        Args:
            session: the session with the home and volumes.
            id: the snapshot.
            except_paths: paths that may differ in the home, as patterns of rsync, from the top of it.
            at_a_glance: somebody waits: files of the same size and time count as the same.

        Raises:
            homes.copying.NobodyKnows: that takes too long.
        """

    def restore(self, session: Session, id: str) -> None:
        """Make home and volumes of a session that is stopped equal to their snapshot.

        Raises:
            RefitError: the snapshot of one of them isn't there; all are as they were.
        """

    def bring_files(self, session: Session, id: str, paths: Iterable[str], *, to: str = "", suffix: str = "") -> None:
        """Let single files and folders be what they are in a snapshot, while the session runs or not.

        Args:
            session: the session with the home and volumes.
            id: the snapshot.
            paths: as the session sees them, or from the top of its home.
            to: a new folder in the home for them; empty: into place.
            suffix: appended to the names of files that are overwritten; empty: they go.

        Raises:
            RefitError: one isn't in the snapshot, or `to` can't be made: nothing was brought.
        """

    def drafts(self) -> tuple[str, ...]:
        """The names of homes that aren't there, but for a copy that a killed process may have left."""

    def note(self, session: str, id: str, text: str) -> None:
        """Write beside a snapshot that is whole what it is, on one line; `forget` removes that."""

    def notes(self, session: str) -> tuple[str, ...]:
        """The notes about a session's snapshots."""

    def forget(self, session: str, id: str) -> None:
        """Remove one snapshot, of the home and of the volumes, and the note about it first."""
