"""Terminals of JupyterLab that a move has ended: they are there again, and empty, once a page asks which there are.

Refit posts their names to `/refit/terminals` before any page can reach the server: a page closes the tab of a terminal
that isn't listed. No shell is started before, so that what it does to the home isn't taken for the image's doing.
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
        super().__init__(**options)
        self.awaited = []

    def list(self):
        """All terminals."""
        self.open_awaited()
        return super().list()

    def get(self, name):
        """One terminal."""
        self.open_awaited()
        return super().get(name)

    async def terminate_all(self):
        """End all, and await none."""
        self.awaited.clear()
        await super().terminate_all()

    def open_awaited(self):
        """Open those that are awaited, unless there is one of that name."""
        while self.awaited:
            name = self.awaited.pop()
            if name not in self.terminals:
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
