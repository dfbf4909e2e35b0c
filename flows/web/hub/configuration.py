"""JupyterHub's configuration. It reads this file by its path; the files in `jupyterhub_config.d` come after it."""

from typing import Any

from flows.web.hub import configured

c: Any = get_config()  # type: ignore[name-defined]  # noqa: F821 - JupyterHub defines it
configured.configure(c)
for file in configured.more():
    load_subconfig(file.name, path=str(file.parent))  # type: ignore[name-defined]  # noqa: F821
