"""Ends shares whose time is over, or whose session is another person's now, at the Hub and in Refit's record."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import timedelta

from flows.sessions.people.entitlements import Entitlements, Grant
from flows.sessions.people.share_records import Grants
from flows.web.people.client import HubClient

logger = logging.getLogger("refit.authorizer")

# A record is there before the share: for so long it may be without one.
_PENDING = timedelta(minutes=1)
_BY = "refit"


def over(entitlements: Entitlements) -> Iterator[Grant]:
    """The records of shares that hold no more. Pure."""
    for grant in entitlements.grants:
        gone = grant.share not in entitlements.rights.shares and grant.at < entitlements.at - _PENDING
        if grant.is_due(entitlements.at) or entitlements.owners.get(grant.session) != grant.owner or gone:
            yield grant


def end_over(entitlements: Entitlements, grants: Grants, hub: HubClient) -> None:
    """End them.

    Raises:
        HubError: the Hub doesn't answer, or refuses.
    """
    for grant in over(entitlements):
        # A share that outlived its record would hold for ever.
        hub.unshare(grant.owner, grant.server, grant.kind.value, grant.subject)
        grants.end(grant.share, _BY)
        logger.warning("the share of %s with %s has ended", grant.session, grant.subject)
