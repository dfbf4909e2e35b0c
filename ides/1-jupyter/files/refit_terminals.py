"""Terminals of JupyterLab that a move has ended: they are there again, and empty, once a page asks for any.

Refit posts their names to `/refit/terminals` before any page can reach the server: a page closes the tab of a terminal
that isn't listed, and a tab whose terminal isn't there tries again only after a while. No shell is started before, so
that what it does to the home isn't taken for the image's doing.
"""

import json

from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.utils import url_path_join
from jupyter_server_terminals.terminalmanager import TerminalManager
from tornado import web

MOST = 100


class Terminals(TerminalManager):
    """Opens the terminals that are awaited as soon as somebody asks for any."""

    def __init__(self, **options):
        """Await none."""
        self.awaited = []
        super().__init__(**options)

    @property
    def terminals(self):
        """Name → terminal, those included that were awaited; lists and a tab's own connection look here."""
        self.open_awaited()
        return self._terminals

    @terminals.setter
    def terminals(self, terminals):
        self._terminals = terminals

    async def terminate_all(self):
        """End all, and await none."""
        self.awaited.clear()
        await super().terminate_all()

    def open_awaited(self):
        """Open those that are awaited, unless there is one of that name."""
        names = self.awaited[:]
        self.awaited.clear()  # before `create` looks here
        for name in names:
            if name not in self._terminals:
                self.create(name=name)


class Awaited(JupyterHandler):
    """Takes the names of terminals that pages will ask for. That counts as nobody's activity."""

    @web.authenticated
    def post(self):
        """Await terminals by these names."""
        names = json.loads(self.request.body)["names"]
        self.settings["terminal_manager"].awaited[:] = [name for name in names if isinstance(name, str)][:MOST]
        self.set_status(204)
        self.finish()


def _jupyter_server_extension_points():
    return [{"module": "refit_terminals"}]


def _load_jupyter_server_extension(app):
    url = url_path_join(app.web_app.settings["base_url"], "/refit/terminals")
    app.web_app.add_handlers(".*$", [(url, Awaited)])
