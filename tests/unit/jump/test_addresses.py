"""People are led to no address that the engine says is another's, and an engine that is away holds nobody up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from flows.core.errors import RefitError
from flows.jump.addresses import Addresses


class Double:
    """Sessions with what the forwarder was told, and an engine that knows what is outdated, unless it is away."""

    def __init__(self) -> None:
        self.told = {"ada": "10.0.0.1", "bob": "10.0.0.2"}
        self.gone, self.away = frozenset[str](), False
        self.ssh = self.engine = self.sshd = self

    def addresses(self) -> Mapping[str, str]:
        return dict(self.told)

    def outdated(self, addresses: Mapping[str, str]) -> frozenset[str]:
        if self.away:
            raise RefitError("The API server doesn't answer.")
        return self.gone & addresses.keys()


def test_an_address_is_left_out_once_it_is_outdated_until_the_session_is_elsewhere() -> None:
    double = Double()
    sessions: Any = double
    addresses = Addresses(sessions)
    assert addresses.now() == double.told
    double.gone = frozenset({"ada"})
    addresses.look()
    assert addresses.now() == {"bob": "10.0.0.2"}
    double.away = True
    with pytest.raises(RefitError):
        addresses.look()
    assert addresses.now() == {"bob": "10.0.0.2"}, "what was known holds"
    double.told["ada"] = "10.0.0.9"
    assert addresses.now() == double.told
    double.told["ada"], double.away, double.gone = "10.0.0.1", False, frozenset()
    addresses.look()
    assert addresses.now() == double.told
