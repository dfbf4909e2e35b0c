"""JupyterHub with what it tells Refit beside its own API, whichever authenticator and settings the operator chooses."""

from __future__ import annotations

from typing import Any

from jupyterhub.app import JupyterHub

from flows.core.database import open_database
from flows.sessions.people.person_keys import PersonKeys
from flows.web.hub import accepting, accounts, entering, rights_handler
from flows.web.hub.spawner import settings


def _note_leaving(authenticator: Any) -> None:
    """Forget the keys of people whose accounts are removed; then the Hub removes their servers, and sessions stay."""
    delete, add = authenticator.delete_user, authenticator.add_user

    def delete_user(user: Any) -> Any:
        accounts.leaving.add(user.name)
        # Somebody who gets the same name later isn't the same person.
        PersonKeys(open_database(settings().database)).forget(user.name)
        return delete(user)

    def add_user(user: Any) -> Any:
        accounts.leaving.discard(user.name)
        return add(user)

    authenticator.delete_user, authenticator.add_user = delete_user, add_user


class RefitHub(JupyterHub):
    """JupyterHub; its settings are those of `c.JupyterHub`."""

    def init_handlers(self) -> None:
        """Let Refit's own answers come first, and let the sessions of people outlive their accounts."""
        super().init_handlers()
        _note_leaving(self.authenticator)
        own = [
            (rights_handler.PATH, rights_handler.RightsHandler),
            (rights_handler.ADMINS, rights_handler.AdminsHandler),
            (accepting.PATH, accepting.AcceptHandler),
            (entering.PATH, entering.EnterHandler),
        ]
        self.handlers[:0] = self.add_url_prefix(self.hub_prefix, own)
