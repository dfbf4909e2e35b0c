"""The table of all verbs, which people and their programs can use here.

From it come the routes of the API, its OpenAPI description and the forms of the pages.
"""

from flows.web.my_sessions.verbs import (
    access_verbs,
    copy_verbs,
    create_verbs,
    operator_verbs,
    own_verbs,
    person_limit_verbs,
    profile_verbs,
    snapshot_verbs,
    ssh_verbs,
    update_verbs,
)
from flows.web.my_sessions.verbs.context import Verb

VERBS: tuple[Verb, ...] = (
    *own_verbs.VERBS,
    *person_limit_verbs.VERBS,
    *create_verbs.VERBS,
    *update_verbs.VERBS,
    *snapshot_verbs.VERBS,
    *copy_verbs.VERBS,
    *access_verbs.VERBS,
    *ssh_verbs.VERBS,
    *profile_verbs.VERBS,
    *operator_verbs.VERBS,
)
BY_NAME = {verb.name: verb for verb in VERBS}
