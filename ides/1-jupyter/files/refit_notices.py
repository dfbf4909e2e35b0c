"""Notices in JupyterLab: Refit leaves them at this extension of the server, pages that are open show them and say so.

All of it is `/refit/notices`: Refit posts a notice with an id, pages read them and post what became of one. None of it
counts as Jupyter's activity, for only its own API handlers do. So a page also says when somebody types or clicks in it,
and the time of a file in the home keeps that.
"""

import contextlib
import json
import time
from pathlib import Path

from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.utils import url_path_join
from tornado import web

SCHEMA = "https://refit/notices"
# Of a notice that is sent again, what became of it stays.
UNSEEN = {"shown": False, "closed": False, "answer": ""}
SENT = ("id", "title", "text", "answers")
MOST = 20
HEARTBEAT = ".local/share/jupyter/heartbeat"


class Notices(JupyterHandler):
    """Takes notices, and answers with all that are there; the last one is what is to be shown."""

    def initialize(self, notices):
        """Remember where notices are kept: id → notice."""
        self.notices = notices

    @web.authenticated
    def get(self):
        """Answer with all notices."""
        self.answer()

    @web.authenticated
    def post(self):
        """Take a notice, or what became of one that is there."""
        said = json.loads(self.request.body)
        if "used" in said:
            self.beat()
        elif "text" in said:
            self.take({name: said[name] for name in SENT})
        elif said["id"] in self.notices:
            known = {name: type(value)(said[name]) for name, value in UNSEEN.items() if name in said}
            self.notices[said["id"]].update(known)
        self.answer()

    def take(self, notice):
        """Keep a notice, and let the pages that are open know."""
        known = self.notices.pop(notice["id"], {})
        self.notices[notice["id"]] = {**UNSEEN, "at": time.time(), **known, **notice}
        for oldest in list(self.notices)[:-MOST]:
            del self.notices[oldest]
        self.event_logger.emit(schema_id=SCHEMA, data={"id": notice["id"]})

    def beat(self):
        """Keep that somebody works in a page just now."""
        with contextlib.suppress(OSError):  # a home that is full
            file = Path.home() / HEARTBEAT
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()

    def answer(self):
        """Answer with all notices."""
        self.set_header("Content-Type", "application/json")
        self.set_header("Cache-Control", "no-store")
        self.finish(json.dumps(list(self.notices.values())))


def _jupyter_server_extension_points():
    return [{"module": "refit_notices"}]


def _load_jupyter_server_extension(app):
    app.event_logger.register_event_schema(
        {
            "$id": SCHEMA,
            "version": "1",
            "type": "object",
            "properties": {"id": {"type": "string"}},
            "required": ["id"],
        }
    )
    url = url_path_join(app.web_app.settings["base_url"], "/refit/notices")
    app.web_app.add_handlers(".*$", [(url, Notices, {"notices": {}})])
