"""The filter of kernel calls is made of whatever form the engine's own profile has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flows.host.seccomp import without_user_namespaces

NEW_USER = 0x10000000
OWN = Path("/usr/share/containers/seccomp.json")


def action(profile: Any, call: str, flags: int) -> tuple[str, int]:
    """The verdict on a call, as libseccomp has it where the rules don't overlap."""
    for rule in profile["syscalls"]:
        if call not in rule["names"] or "s390" in (rule.get("includes") or {}).get("arches", []):
            continue
        if all(flags & argument["value"] == argument["valueTwo"] for argument in rule.get("args") or ()):
            return rule["action"], rule.get("errnoRet", 0)
    return profile["defaultAction"], profile.get("defaultErrnoRet", 1)


OLD = {
    "defaultAction": "SCMP_ACT_ERRNO",
    "syscalls": [
        {"names": ["clone", "clone3", "read", "setns", "unshare"], "action": "SCMP_ACT_ALLOW", "args": []},
        {"names": ["clone"], "action": "SCMP_ACT_ALLOW", "args": None, "includes": {"caps": ["CAP_SYS_ADMIN"]}},
    ],
}


@pytest.mark.parametrize("own", [OLD, json.loads(OWN.read_text())], ids=["made up", "of this machine"])
def test_nothing_makes_a_user_namespace_and_all_else_is_as_it_was(own: Any) -> None:
    made = without_user_namespaces(own)
    for call in ("clone", "unshare"):
        assert action(made, call, 0x11)[0] == "SCMP_ACT_ALLOW"
        assert action(made, call, NEW_USER | 0x11) == ("SCMP_ACT_ERRNO", 1)
    assert action(made, "clone3", 0) == ("SCMP_ACT_ERRNO", 38)
    assert action(made, "setns", 0) == ("SCMP_ACT_ERRNO", 1)
    assert action(made, "read", 0) == action(own, "read", 0)
    names = [{name for rule in profile["syscalls"] for name in rule["names"]} for profile in (own, made)]
    assert names[0] == names[1]
