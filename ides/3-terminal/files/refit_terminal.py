"""The page of the web terminal: an extension of the Jupyter server, which guards it with the session's token."""

from pathlib import Path

from jupyter_server.base.handlers import FileFindHandler, JupyterHandler
from jupyter_server.utils import url_path_join
from tornado import web

HERE = Path(__file__).parent
XTERM = HERE.parent / "node_modules" / "@xterm"
STATIC = {
    "terminal.js": HERE,
    "xterm.js": XTERM / "xterm" / "lib",
    "xterm.css": XTERM / "xterm" / "css",
    "addon-fit.js": XTERM / "addon-fit" / "lib",
}


class Page(JupyterHandler):
    """Opens a terminal in the browser; the page's script asks the server for its shell."""

    @web.authenticated
    def get(self):
        """Answer with the page."""
        page = (HERE / "terminal.html").read_text()
        self.write(page.replace("{{ base_url }}", self.base_url).replace("{{ xsrf }}", self.xsrf_token.decode()))


def _jupyter_server_extension_points():
    return [{"module": "refit_terminal"}]


def _load_jupyter_server_extension(app):
    base = app.web_app.settings["base_url"]
    static = [
        (url_path_join(base, f"/terminal/({name})"), FileFindHandler, {"path": [str(folder)]})
        for name, folder in STATIC.items()
    ]
    app.web_app.add_handlers(".*$", [(url_path_join(base, "/terminal"), Page), *static])
