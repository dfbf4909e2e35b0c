"""A person's recipe is written down as theirs, and its build asked for."""

from __future__ import annotations

from collections.abc import Mapping

from flows.authoring.own.catalog import Wish, composed
from flows.core.database import now, open_database
from flows.core.settings import Settings
from flows.publishing import own_build_log
from flows.publishing.own_build_requests import BuildRequests
from flows.publishing.own_profiles import LimitReached, OwnProfile, OwnProfiles, check_owner


def give(wish: Wish, files: Mapping[str, bytes], settings: Settings) -> OwnProfile:
    """Look at a person's recipe, and write it down as theirs: its name is taken then. Nothing is built.

    Raises:
        Mistakes: in the recipe, by its own paths.
        NotYours: the name is another person's.
        LimitReached: the person has as many as they may.
    """
    check_owner(wish.owner)
    records = OwnProfiles(open_database(settings.database))
    with composed(wish, files, settings, new=records.find(wish.name) is None) as (_, profile):
        own = OwnProfile(wish.name, wish.owner, profile.stem, wish.release, dict(files), (), now())
    records.take(own, settings.personal_builds)
    return own


def ask(wish: Wish, files: Mapping[str, bytes], settings: Settings) -> OwnProfile:
    """As `give`; its build waits in the queue then, which Refit's worker works off.

    Raises:
        LimitReached: also where there are no such builds here, or too many wait.
    """
    if not settings.personal_builds.at_once:
        raise LimitReached("People build no profiles of their own here.", why="`personal_builds.at_once` is 0.")
    own = give(wish, files, settings)
    own_build_log.begin_anew(settings, own.owner, own.bundle)
    BuildRequests(open_database(settings.database)).ask(own.bundle, own.owner)
    return own
