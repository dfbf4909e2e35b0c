"""The contract of keepers of homes, real or simulated: derive a class from `HomesContract`, give it its fixtures."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import pytest

from flows.core.errors import RefitError
from flows.sessions.engine import Homes
from flows.sessions.homes.volumes import Wanted
from flows.sessions.model import HomeRef, IllegalName, Session, Volume


class Files(Protocol):
    """Acts of a session's user in its home and volumes."""

    def write(self, place: HomeRef, path: str, text: str) -> None:
        """Let there be a file with this text, and no other."""

    def delete(self, place: HomeRef, path: str) -> None:
        """Delete a file."""

    def all(self, place: HomeRef) -> dict[str, str]:
        """Path → text of all files."""


def with_volume(homes: Homes, session: Session) -> tuple[Session, HomeRef]:
    session = replace(session, volumes=(homes.mounted(session.name, Wanted("data", "/data")),))
    homes.make_volumes(session)
    homes.make_volumes(session)
    return session, session.volumes[0].ref


class HomesContract:
    """Fixtures: `homes`; `files`; `session`, a new one at each call, whose home is made."""

    def test_a_home_is_made_once_and_is_of_one_user(self, homes: Homes, files: Files, session: Session) -> None:
        files.write(session.home, "notes", "one")
        assert homes.home_of(session.name) == session.home == homes.make(session.name, session.uid)
        assert files.all(session.home) == {"notes": "one"}
        assert homes.owners()[session.name] == session.uid
        with pytest.raises(RefitError, match=f"belongs to uid {session.uid}"):
            homes.make(session.name, session.uid + 1)

    @pytest.mark.parametrize("name", ["", "..", "a/b", "../ana", "-rf", "Ana", "a" * 41])
    def test_a_name_that_could_be_a_path_is_refused(self, homes: Homes, name: str) -> None:
        for verb in (homes.home_of, homes.remove, lambda given: homes.make(given, 234_567)):
            with pytest.raises(IllegalName):
                verb(name)

    def test_a_snapshot_holds_what_was_there_at_the_stop(self, homes: Homes, files: Files, session: Session) -> None:
        files.write(session.home, "notes", "one")
        files.write(session.home, "draft", "one")
        homes.check_room(session)
        assert not homes.has_snapshot(session.name, "move")
        homes.copy(session, "move")
        files.write(session.home, "notes", "two, saved at the end")
        files.delete(session.home, "draft")
        assert set(homes.differences(session, "move")) == {"changed: notes", "gone: draft"}
        for _ in range(2):
            homes.delta(session, "move")
            assert homes.has_snapshot(session.name, "move") and homes.differences(session, "move") == ()

    def test_what_an_image_writes_as_its_own_is_no_difference(
        self, homes: Homes, files: Files, session: Session
    ) -> None:
        homes.delta(session, "move")
        files.write(session.home, ".cache/ide/state", "started")
        assert homes.differences(session, "move", ("/.cache/",)) == ()
        files.write(session.home, "notes", "one")
        assert homes.differences(session, "move", ("/.cache/",)) == ("new: notes",)

    def test_a_home_is_restored(self, homes: Homes, files: Files, session: Session) -> None:
        files.write(session.home, "notes", "one")
        files.write(session.home, "results", "two")
        before = files.all(session.home)
        homes.delta(session, "move")
        files.delete(session.home, "notes")
        files.write(session.home, "results", "spoiled")
        files.write(session.home, "more", "unasked")
        for _ in range(2):
            homes.restore(session, "move")
            assert files.all(session.home) == before and homes.differences(session, "move") == ()

    def test_restoring_from_nothing_changes_nothing(self, homes: Homes, files: Files, session: Session) -> None:
        files.write(session.home, "notes", "one")
        with pytest.raises(RefitError, match="no snapshot 'move'"):
            homes.restore(session, "move")
        assert files.all(session.home) == {"notes": "one"}

    def test_home_and_volumes_are_one_set(self, homes: Homes, files: Files, session: Session) -> None:
        session, data = with_volume(homes, session)
        files.write(session.home, "notes", "one")
        files.write(data, "rows", "1")
        homes.delta(session, "move")
        files.delete(session.home, "notes")
        files.write(data, "rows", "spoiled")
        assert set(homes.differences(session, "move")) == {"gone: notes", "changed: rows (volume data)"}
        homes.restore(session, "move")
        assert (files.all(session.home), files.all(data)) == ({"notes": "one"}, {"rows": "1"})

    def test_a_snapshot_without_a_volume_restores_nothing(self, homes: Homes, files: Files, session: Session) -> None:
        homes.delta(session, "move")
        session, _ = with_volume(homes, session)
        files.write(session.home, "notes", "one")
        with pytest.raises(RefitError, match="no snapshot 'move'"):
            homes.restore(session, "move")
        assert files.all(session.home) == {"notes": "one"}

    def test_single_files_come_back_and_what_they_overwrite_may_stay(
        self, homes: Homes, files: Files, session: Session
    ) -> None:
        files.write(session.home, "notes", "one")
        files.write(session.home, "results", "one")
        homes.delta(session, "then")
        files.write(session.home, "notes", "two")
        files.write(session.home, "results", "two")
        homes.bring_files(session, "then", ["notes"], suffix=".now")
        assert files.all(session.home) == {"notes": "one", "notes.now": "two", "results": "two"}
        homes.bring_files(session, "then", ["results"], to="beside")
        assert files.all(session.home)["beside/results"] == "one" and files.all(session.home)["results"] == "two"
        with pytest.raises(RefitError, match="isn't in the snapshot"):
            homes.bring_files(session, "then", ["results", "missing"])
        assert files.all(session.home)["results"] == "two"

    def test_a_clone_begins_with_the_files_of_a_snapshot(self, homes: Homes, files: Files, session: Session) -> None:
        files.write(session.home, "notes", "one")
        homes.delta(session, "then")
        files.write(session.home, "notes", "two")
        name, uid = f"{session.name}-two", session.uid + 1
        new = replace(session, name=name, uid=uid, home=homes.home_of(name), volumes=())
        for _ in range(2):  # the first one is killed before it is whole
            homes.draft_clone(session, "then", new)
            assert name not in homes.owners()
        homes.finish_clone(new, session.uid)
        try:
            assert homes.owners()[name] == uid and files.all(new.home) == {"notes": "one"}
            assert files.all(session.home) == {"notes": "two"}
        finally:
            homes.remove_volume(new.home)

    def test_a_snapshot_is_forgotten_alone(self, homes: Homes, session: Session) -> None:
        homes.copy(session, "one")
        homes.copy(session, "two")
        for _ in range(2):
            homes.forget(session.name, "one")
            assert [homes.has_snapshot(session.name, id) for id in ("one", "two")] == [False, True]

    def test_what_a_rehearsal_writes_is_in_its_copy_alone(self, homes: Homes, files: Files, session: Session) -> None:
        session, data = with_volume(homes, session)
        files.write(session.home, "notes", "one")
        files.write(data, "rows", "1")
        copy = homes.spare(session, most=10**9)
        assert (files.all(copy.home), files.all(copy.volumes[0].ref)) == ({"notes": "one"}, {"rows": "1"})
        files.write(copy.home, "notes", "spoiled")
        files.write(copy.volumes[0].ref, "rows", "spoiled")
        for _ in range(2):
            homes.forget_spare(session.name)
            assert (files.all(session.home), files.all(data)) == ({"notes": "one"}, {"rows": "1"})

    def test_a_removed_home_is_gone_with_all_that_is_its_own_and_no_other(
        self, homes: Homes, files: Files, session: Session
    ) -> None:
        other = homes.make(f"{session.name}-2", session.uid + 1)
        files.write(other, "notes", "of somebody else")
        session, _ = with_volume(homes, session)
        homes.copy(session, "move")
        for _ in range(2):
            homes.remove(session.name)
            assert not homes.has_snapshot(session.name, "move")
            assert session.name not in homes.owners() and homes.owners()[f"{session.name}-2"] == session.uid + 1
        assert files.all(other) == {"notes": "of somebody else"}
        homes.make(session.name, session.uid)
        assert files.all(with_volume(homes, session)[1]) == files.all(session.home) == {}

    def test_a_volume_is_removed_alone(self, homes: Homes, files: Files, session: Session) -> None:
        files.write(session.home, "notes", "one")
        session, data = with_volume(homes, session)
        files.write(data, "rows", "1")
        homes.remove_volume(data)
        homes.remove_volume(data)
        assert files.all(with_volume(homes, session)[1]) == {} and files.all(session.home) == {"notes": "one"}

    def test_a_shared_volume_belongs_to_no_session_and_never_goes_back(
        self, homes: Homes, files: Files, session: Session
    ) -> None:
        name = f"shared-{session.name}"
        ref = homes.make_shared(name)
        with pytest.raises(RefitError, match=f"There is a volume '{name}' already"):
            homes.make_shared(name)
        assert homes.shared()[name] == ref and name not in homes.volumes(session.name)
        volume = homes.mounted(session.name, Wanted(name, "/scratch"))
        assert volume == Volume(name, "/scratch", ref, shared=True)
        session = replace(session, volumes=(volume,))
        for _ in range(2):
            homes.make_volumes(session)
        files.write(ref, "rows", "1")
        homes.delta(session, "move")
        files.write(ref, "rows", "2")
        assert homes.differences(session, "move") == ()
        homes.restore(session, "move")
        copy = homes.spare(session, most=10**9)
        assert copy.volumes == (replace(volume, read_only=True),)
        homes.forget_spare(session.name)
        homes.remove(session.name)
        assert files.all(ref) == {"rows": "2"} and homes.shared()[name] == ref
        homes.remove_volume(ref)
        assert name not in homes.shared()
        with pytest.raises(RefitError, match=f"The volume '{name}' of the session '{session.name}' is gone"):
            homes.make_volumes(session)

    def test_a_name_is_that_of_a_shared_volume_or_of_one_s_own(self, homes: Homes, session: Session) -> None:
        name = f"data-{session.name}"
        own = homes.mounted(session.name, Wanted(name, "/data"))
        homes.make_volumes(replace(session, volumes=(own,)))
        assert homes.volumes(session.name) == {name: own.ref}
        ref = homes.make_shared(name)
        try:
            with pytest.raises(RefitError, match=f"There are two volumes '{name}'"):
                homes.mounted(session.name, Wanted(name, "/data"))
            homes.remove_volume(own.ref)
            assert homes.mounted(session.name, Wanted(name, "/data")).ref == ref
        finally:
            homes.remove_volume(ref)
