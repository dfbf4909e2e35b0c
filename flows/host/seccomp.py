"""Which calls of the kernel a session may make: those of the engine's own profile, without new user namespaces.

In a user namespace of its own a program has all capabilities, and much of the kernel is open to it that is closed to
users, where most of its holes are found. All here is pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NEW_USER = 0x10000000  # CLONE_NEWUSER of linux/sched.h
_EPERM, _ENOSYS = 1, 38
_MAKING = ("clone", "clone3", "setns", "unshare")
# There the flags are the second argument of clone.
_SWAPPED = ["s390", "s390x"]

Profile = Mapping[str, Any]


def without_user_namespaces(profile: Profile) -> Profile:
    """A seccomp profile of containers-common's form, in which nothing makes or enters a user namespace.

    `clone3` doesn't exist there, because its flags are where no filter can look; libc falls back on `clone`.
    """
    rules = [{**rule, "names": [name for name in rule["names"] if name not in _MAKING]} for rule in profile["syscalls"]]
    ours = [
        *_unless_new_user(["unshare"], 0),
        *_unless_new_user(["clone"], 0, {"excludes": {"arches": _SWAPPED}}),
        *_unless_new_user(["clone"], 1, {"includes": {"arches": _SWAPPED}}),
        {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": _ENOSYS},
        {"names": ["setns"], "action": "SCMP_ACT_ERRNO", "errnoRet": _EPERM},
    ]
    return {**profile, "syscalls": [*(rule for rule in rules if rule["names"]), *ours]}


def _unless_new_user(names: list[str], at: int, where: Mapping[str, Any] | None = None) -> list[Mapping[str, Any]]:
    compared = {"index": at, "value": _NEW_USER, "op": "SCMP_CMP_MASKED_EQ"}
    condition = {"args": [{**compared, "valueTwo": 0}]}
    refused = {"args": [{**compared, "valueTwo": _NEW_USER}], "errnoRet": _EPERM}
    return [
        {"names": names, "action": "SCMP_ACT_ALLOW", **condition, **(where or {})},
        {"names": names, "action": "SCMP_ACT_ERRNO", **refused, **(where or {})},
    ]
