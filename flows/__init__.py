"""Refit: images from a catalog, and sessions that move onto new ones.

A file in this folder is a flow of Prefect, and nothing else is. All other modules stand in rooms, and each room says in
its `__init__` what it is about. Imports point downwards only; from the top:

* `cli`: the `refit` command.
* `web`: pages and APIs for people, beside their IDEs; `web/hub` is JupyterHub's part.
* The flows: `nightly`, `build_profiles`, `migrate_sessions` and the others.
* `orchestration`: deployments, queues and workers of Prefect, which is imported here and in the flows alone.
  `metrics` stands beside it.
* `services`, `waiting_page`, `jump`: processes that run all the time. `waiting_page/housekeeping` has the tasks that
  are due while no command and no flow runs.
* `migrations`, and below it `compatibility`: moving sessions from one image to another.
* `sessions`: the environments of developers. `releases` stands beside it: plans and reports of releases.
* `publishing`, and below it `images` and `locks`: from exact versions to images in a registry. `authoring` helps people
  who write a catalog.
* `catalog`, `gateway`, `host`, `signing`: recipes, the way to sessions by a browser, this machine, and trust.
* `core`: settings, database, programs, documents, errors.

`tests/unit/test_architecture.py` has the whole order, and holds it.
"""

import gc
import os

# Nearly all that imports make stays: to look for unreachable objects among it took 4 to 12 % of the CPU of the start of
# a process. The first is 700 by default. Objects that outlived two looks are looked at after 300,000 new ones: after a
# million, a run of hundreds of moves would keep the closed connections of all.
gc.set_threshold(10_000, 10, 3)
# Prefect would start a server of its own where it is told of none, and that one outlives a command that is killed.
os.environ.setdefault("PREFECT_SERVER_ALLOW_EPHEMERAL_MODE", "false")
# Refit has no plugins of Pydantic: to look for some, the metadata of each installed package are read, for 13 ms of CPU.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
