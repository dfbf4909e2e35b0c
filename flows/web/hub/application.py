"""JupyterHub with what it tells Refit beside its own API, whichever authenticator and settings the operator chooses."""

from __future__ import annotations

from jupyterhub.app import JupyterHub

from flows.web.hub import accepting, rights_handler


class RefitHub(JupyterHub):
    """JupyterHub; its settings are those of `c.JupyterHub`."""

    def init_handlers(self) -> None:
        """Let Refit's own answers come first."""
        super().init_handlers()
        own = [(rights_handler.PATH, rights_handler.RightsHandler), (accepting.PATH, accepting.AcceptHandler)]
        self.handlers[:0] = self.add_url_prefix(self.hub_prefix, own)
