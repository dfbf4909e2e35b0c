"""Runs JupyterHub as Refit wants it: `refit up` starts it there."""

import os
import sys
from pathlib import Path


def main() -> None:
    """Serve until this process is told to end."""
    os.umask(0o077)
    try:
        from flows.web.hub.application import RefitHub  # noqa: PLC0415 - it is an extra
    except ImportError as error:
        sys.exit(f"JupyterHub can't be imported: {error}. Install Refit with all that it needs, or set `hub` to false.")
    # It upgrades its tables by the program `alembic`, and starts services as `python`.
    os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    RefitHub.launch_instance([f"--config={Path(__file__).with_name('configuration.py')}"])


main()
