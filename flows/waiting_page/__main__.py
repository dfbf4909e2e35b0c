"""Runs the waiting page at the socket that the gateway knows, in the working directory: `refit up` starts it there."""

import logging
import os
from pathlib import Path

import uvicorn

from flows.core.settings import load
from flows.host.sockets import private_listener
from flows.waiting_page.app import WaitingPage, application
from flows.waiting_page.housekeeping import Housekeeping


def main() -> None:
    """Answer until this process is told to end."""
    os.umask(0o077)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    waiting_page = WaitingPage.open(load())
    Housekeeping(waiting_page).start()
    # No log of accesses, for addresses hold tokens. A websocket is answered like everything else: not now.
    config = uvicorn.Config(
        application(waiting_page), ws="none", access_log=False, log_level="error", server_header=False
    )
    uvicorn.Server(config).run(sockets=[private_listener(Path("socket"))])


main()
