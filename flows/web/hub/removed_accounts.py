"""People whose accounts at the Hub are removed: keys and offers end, their sessions outlive the accounts."""

from __future__ import annotations

from typing import Any

from flows.core.database import open_database
from flows.core.settings import Settings
from flows.publishing.own_build_requests import BuildRequests
from flows.publishing.own_profiles import OwnProfiles
from flows.sessions.people.person_keys import PersonKeys

people: set[str] = set()
"""The people who are leaving: the Hub deletes their servers, and their sessions are to stay."""
_NOTED = "refit_notes_leaving"


def note(authenticator: Any, chosen: Settings) -> None:
    """Let an authenticator of the Hub tell of those who leave; once for each."""
    if getattr(authenticator, _NOTED, False):
        return
    delete, add = authenticator.delete_user, authenticator.add_user

    def delete_user(user: Any) -> Any:
        people.add(user.name)
        # Somebody who gets the same name later isn't the same person.
        database = open_database(chosen.database)
        PersonKeys(database).forget(user.name)
        OwnProfiles(database).leave(user.name)
        BuildRequests(database).leave(user.name)
        return delete(user)

    def add_user(user: Any) -> Any:
        people.discard(user.name)
        return add(user)

    authenticator.delete_user, authenticator.add_user = delete_user, add_user
    setattr(authenticator, _NOTED, True)
