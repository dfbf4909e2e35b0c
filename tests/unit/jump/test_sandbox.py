"""The files of the jump host's sshd are its user's, whoever that was before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flows.core.errors import RefitError
from flows.core.programs import command
from flows.core.settings import Settings
from flows.host import user_namespace
from flows.jump.sandbox import Sandbox


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone gives files away without a namespace")
def test_the_host_key_stays_and_goes_to_the_user_that_the_sshd_has_now(tmp_path: Path) -> None:
    Sandbox(Settings(home=tmp_path, jump_uid=4_000_001)).prepare()
    key = tmp_path / "services" / "jump" / "etc" / "host_key"
    private = key.read_text()
    assert key.stat().st_uid == 4_000_001
    now = Sandbox(Settings(home=tmp_path, jump_uid=4_000_002))
    now.prepare()
    assert (key.stat().st_uid, key.stat().st_mode & 0o777, key.read_text()) == (4_000_002, 0o400, private)


def test_a_host_key_of_a_range_that_was_taken_back_is_told_with_the_command_that_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A namespace without further users gives no file away, as one with another range doesn't."""
    key = tmp_path / "services" / "jump" / "etc" / "host_key"
    key.parent.mkdir(parents=True)
    command.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key])
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(user_namespace, "ENTER", ("unshare", "--user", "--map-root-user", "--"))
    monkeypatch.setattr(user_namespace, "uid", lambda: user_namespace.Uid(10, 4_000_003))
    with pytest.raises(RefitError) as told:
        Sandbox(Settings(home=tmp_path)).prepare()
    assert f"uid {os.getuid()}," in told.value.why and told.value.hint == f"as root: chown 4000003 {key}"
