"""The parts of a session's Pod that its sshd needs: its keys, and its user by name. Pure."""

from __future__ import annotations

from typing import Any

from flows.sessions.model import HOME, USER

# The Secret of a session has these beside its token, and a text that says which state of them that is.
FILES, VERSION = ("authorized_keys", "probe", "host_key", "host_key.pub", "host_key-cert.pub"), "version"
# Annotations of a Pod: its file of users, and the state of the Secret of which kubelet was told.
ACCOUNTS, TOLD = "io.refit.accounts", "io.refit.ssh"
_ACCOUNTS_FILE = {"path": "passwd", "fieldRef": {"fieldPath": f"metadata.annotations['{ACCOUNTS}']"}}
# Of each slot. The keys are not where the image looks for them: it would start an sshd while the other slot has one, at
# the same port of the Pod.
MOUNTS: tuple[dict[str, Any], ...] = (
    {"name": "ssh", "mountPath": "/run/refit/sshd", "readOnly": True},
    {"name": "accounts", "mountPath": "/etc/passwd", "subPath": "passwd", "readOnly": True},
)


def volumes(secret: str) -> tuple[dict[str, Any], ...]:
    """The volumes of a Pod that slots see; of a session that lets nobody in, the Secret has none of the files."""
    # All of one volume: kubelet changes them at once, by one symlink, so the version comes with its keys.
    items = [{"key": name, "path": name} for name in (*FILES, VERSION)]
    source = {"secretName": secret, "optional": True, "defaultMode": 0o440, "items": items}
    accounts = {"defaultMode": 0o444, "items": [_ACCOUNTS_FILE]}
    return {"name": "ssh", "secret": source}, {"name": "accounts", "downwardAPI": accounts}


def accounts(uid: int) -> str:
    """`/etc/passwd` of a session: an image has no user with its uid, and sshd lets in none without a name."""
    lines = (
        "root:*:0:0:root:/root:/bin/sh",
        "daemon:*:1:1:daemon:/usr/sbin:/usr/sbin/nologin",
        "bin:*:2:2:bin:/bin:/usr/sbin/nologin",
        "sshd:*:74:74:sshd:/run/sshd:/usr/sbin/nologin",
        "nobody:*:65534:65534:nobody:/nonexistent:/usr/sbin/nologin",
        f"{USER}:*:{uid}:0::{HOME}:/bin/bash",
    )
    return "".join(f"{line}\n" for line in lines)
