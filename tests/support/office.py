"""A machine with sessions of two people, and the laptops from which people come in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flows.core.settings import Settings
from flows.sessions.lifecycle import Sessions
from flows.sessions.people.entitlements import Kind, Share
from flows.sessions.people.person_keys import PersonKeys
from tests.support.laptops import Laptop, hear
from tests.support.waiting import wait_until

PEOPLE = ("ada", "bob", "eve")
TO_BOB = Share("ada", "ada", Kind.person, "bob")


@dataclass
class Office:
    """A machine with sessions of Ada and Bob, and the laptops of people."""

    settings: Settings
    sessions: Sessions
    images: tuple[str, str]
    folder: Path

    @property
    def keys(self) -> PersonKeys:
        return PersonKeys(self.sessions.store.database)

    def laptop(self, person: str) -> Laptop:
        """A new machine of somebody, whose key is known from now on."""
        laptop = self.stranger(person)
        laptop.tell_key()
        laptop.configure()
        return laptop

    def stranger(self, person: str) -> Laptop:
        number = len([*self.folder.iterdir()]) if self.folder.exists() else 0
        laptop = Laptop.make(self.settings, person, self.folder / f"{person}-{number}", self.keys)
        laptop.configure()
        return laptop

    def say(self, *shares: Share, people: tuple[str, ...] = PEOPLE) -> None:
        hear(self.settings, people, shares, ("ada", "bob"))

    def knows(self, session: str, laptop: Laptop) -> bool:
        return laptop.fingerprint in {key.fingerprint for key in self.sessions.ssh.people_keys(session)}


def ready(office: Office, person: str, session: str = "") -> Laptop:
    laptop = office.laptop(person)
    wait_until(lambda: office.knows(session or person, laptop))
    laptop.configure()  # the session may have got its host key just now
    wait_until(lambda: laptop.run(session or person, "true").returncode == 0)
    return laptop
