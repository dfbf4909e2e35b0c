"""JupyterHub with what it tells Refit beside its own API, whichever authenticator and settings the operator chooses."""

from __future__ import annotations

from jupyterhub.app import JupyterHub

from flows.web.hub import accepting, entering, removed_accounts, rights_handler
from flows.web.hub.spawner import settings


class RefitHub(JupyterHub):
    """JupyterHub; its settings are those of `c.JupyterHub`."""

    def init_handlers(self) -> None:
        """Let Refit's own answers come first, and let the sessions of people outlive their accounts."""
        super().init_handlers()
        removed_accounts.note(self.authenticator, settings())
        own = [
            (rights_handler.PATH, rights_handler.RightsHandler),
            (rights_handler.ADMINS, rights_handler.AdminsHandler),
            (accepting.PATH, accepting.AcceptHandler),
            (entering.PATH, entering.EnterHandler),
        ]
        self.handlers[:0] = self.add_url_prefix(self.hub_prefix, own)
