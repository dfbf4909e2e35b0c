"""The program of a builder's Pod: `python -m flows.orchestration.builder_pod` becomes a flow run of `build-stages`.

Prefect reads its variables when it is imported, so that they have to be there before.
"""

from __future__ import annotations

import os
import sys

from flows.core.settings import load
from flows.services.prefect_services import LOUD, prefect_environment

ENTRYPOINT = "flows.build_stages:build_stages"


def main() -> None:
    """Run the flow run that `PREFECT__FLOW_RUN_ID` names."""
    environment = {**os.environ, **prefect_environment(load()), **LOUD}
    argv = [sys.executable, "-P", "-m", "flows.orchestration.attempt", ENTRYPOINT]
    os.execve(sys.executable, argv, environment)


if __name__ == "__main__":
    main()
