"""JupyterLab in a session: one person, one container, a home that outlives both."""

import os
import sys
from pathlib import Path

c = get_config()  # noqa: F821  (Jupyter defines it)

c.ServerApp.ip = "0.0.0.0"  # the container's; the engine publishes the port on loopback only
c.ServerApp.port_retries = 0
c.ServerApp.base_url = os.environ.get("NB_PREFIX", "/")
c.ServerApp.open_browser = False
c.ServerApp.quit_button = False
c.ServerApp.root_dir = str(Path.home())
c.ServerApp.terminado_settings = {"shell_command": ["/bin/bash", "-l"]}
# In the home, so that an open page stays logged in when the session moves to another container.
c.ServerApp.cookie_secret_file = str(Path.home() / ".local/share/jupyter/cookie_secret")

# Programs at ports, and those behind the page of an IDE, see neither the token nor the login.
sys.path.append("/opt/ide/server")
c.ServerApp.identity_provider_class = "refit_identity.IdentityProvider"

c.FileContentsManager.delete_to_trash = False

# Shows what Refit has to say, and gives pages back what a move has ended. Kernels don't see the folder: it is in the
# path of the server alone.
sys.path.append("/opt/ide/notices")
c.ServerApp.jpserver_extensions = {"refit_notices": True, "refit_terminals": True}
c.TerminalsExtensionApp.terminal_manager_class = "refit_terminals.Terminals"

# No calls home; page_config.json hides the question whether to make them.
c.LabApp.news_url = None
c.LabApp.check_for_updates_class = "jupyterlab.NeverCheckForUpdate"
c.LabApp.extension_manager = "readonly"
