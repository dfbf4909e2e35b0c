"""The Jupyter server as the door of an IDE that has no token or prefix of its own: one person, one container.

Its documents to open are in jupyter_server_config.json, beside this file.
"""

import os
import sys
from pathlib import Path

c = get_config()  # noqa: F821  (Jupyter defines it)

c.ServerApp.ip = "0.0.0.0"  # the container's; the engine publishes the port on loopback only
c.ServerApp.port_retries = 0
c.ServerApp.base_url = os.environ.get("NB_PREFIX", "/")
c.ServerApp.open_browser = False
c.ServerApp.root_dir = str(Path.home())
c.ServerApp.terminado_settings = {"shell_command": ["/bin/bash", "-l"]}
# In the home, so that an open page stays logged in when the session moves to another container.
c.ServerApp.cookie_secret_file = str(Path.home() / ".local/share/jupyter/cookie_secret")
# Programs at ports, and those behind the page of an IDE, see neither the token nor the login.
sys.path.append("/opt/ide/server")
c.ServerApp.identity_provider_class = "refit_identity.IdentityProvider"
