"""Messages to a real receiver on loopback."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

from flows.core import operator_alerts
from flows.core.programs.program_output import protect
from flows.core.settings import Settings
from tests.support.receiver import receiver
from tests.support.waiting import free_port


def with_addresses(settings: Settings, *urls: str) -> Settings:
    return settings.model_copy(update={"notify": tuple(map(SecretStr, urls))})


def test_nobody_is_told_where_nobody_is_named(settings: Settings) -> None:
    assert operator_alerts.send("title", "text", settings) == ()


@pytest.mark.slow
def test_one_who_can_not_be_told_keeps_nobody_else_from_it(
    settings: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    protect("a password")
    with receiver() as (url, received):
        dead = f"json://ann:hush@127.0.0.1:{free_port()}/token"
        failures = operator_alerts.send(
            "2 failed", "a password in it", with_addresses(settings, "bogus://token", dead, url)
        )
    assert [(message["title"], message["message"]) for message in received] == [("2 failed", "*** in it")]
    assert [failure.partition(":")[0] for failure in failures] == [
        "`notify` number 1 (bogus) could not be told",
        "`notify` number 2 (json) could not be told",
    ]
    for secret in ("token", "hush"):
        assert secret not in "".join(failures) + "".join(capfd.readouterr())
