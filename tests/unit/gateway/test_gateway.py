"""Which route leads where, and at which address a container is reached."""

from __future__ import annotations

import pytest

from flows.core.settings import Settings
from flows.gateway import routes
from flows.gateway.proxy import Gateway
from flows.sessions.containers.podman_records import as_address


def test_a_session_is_at_a_path_of_its_own_and_a_path_belongs_to_one_session() -> None:
    assert [routes.session(path) for path in ("/session/ada/lab", "/session/ada", "/sessions/ada", "/")] == [
        *("ada", "ada", "", "")
    ]
    assert routes.session(routes.path("ada-2")) == "ada-2"


def test_who_is_led_elsewhere_leaves_nobody_at_an_address_that_was_anothers() -> None:
    table = {"/": routes.WAITING_PAGE, "/session/ada": "http://10.0.0.2:8888", "/session/bob": "http://10.0.0.3:8888"}
    assert routes.changes(table, "ada", "http://10.0.0.2:8888") == {}
    assert routes.changes(table, "ada", "http://10.0.0.9:8888") == {"/session/ada": "http://10.0.0.9:8888"}
    taken = routes.changes(table, "ada", "http://10.0.0.3:8888")
    assert taken == {"/session/bob": routes.WAITING_PAGE, "/session/ada": "http://10.0.0.3:8888"}
    assert list(taken)[-1] == "/session/ada"


def test_only_routes_of_sessions_that_are_gone_are_superfluous() -> None:
    table = dict.fromkeys(("/", routes.COMPLETE, "/session/ada", "/session/bob"), routes.WAITING_PAGE)
    assert routes.superfluous(table, {"ada"}) == ("/session/bob",)


def test_a_gateway_that_never_ran_is_asked_nothing_and_keeps_nobody_waiting(settings: Settings) -> None:
    gateway = Gateway(settings)
    assert not gateway.runs
    gateway.route("ada", "http://10.0.0.2:8888")
    gateway.route_to_waiting_page("ada")
    assert gateway.url("/session/ada") == "http://127.0.0.1:17900/session/ada"


@pytest.mark.parametrize(
    ("network", "address"),
    [
        ({"IPAddress": "10.88.0.5"}, ("10.88.0.5", 8888)),
        ({"IPAddress": "", "Networks": {"podman": {"IPAddress": "10.88.0.6"}}}, ("10.88.0.6", 8888)),
        ({"IPAddress": "", "Networks": None}, None),
    ],
)
def test_a_container_that_runs_is_reached_at_its_own_address(
    network: dict[str, object], address: tuple[str, int] | None
) -> None:
    assert as_address({"State": {"Running": True}, "NetworkSettings": network}, 8888) == address
    assert as_address({"State": {"Running": False}, "NetworkSettings": network}, 8888) is None
