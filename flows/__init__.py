"""Refit: images from a catalog, and sessions that move onto new ones.

Imports point downwards only. From the top: `cli` parses, calls and prints; the verbs (`build_profiles`,
`create_session`, `migrate_sessions` …) are flows of Prefect; below them are the rooms, each of which says in its
`__init__` what it is about: `services`, `migrations`, `sessions`, `publishing`, `images`, `locks`, `catalog`. At the
bottom stand the modules that all others may use: `settings`, `database`, `command`, `documents`, `errors`.
`tests/unit/test_architecture.py` has the whole order, and holds it.
"""

import os

# Prefect would start a server of its own where it is told of none, and that one outlives a command that is killed.
os.environ.setdefault("PREFECT_SERVER_ALLOW_EPHEMERAL_MODE", "false")
