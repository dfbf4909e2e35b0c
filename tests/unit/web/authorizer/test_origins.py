"""Hosts of people, by settings and by the host that somebody comes to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flows.core.settings import Settings
from flows.core.settings.cluster import SessionEngine
from flows.core.settings.hub_login import OtherHub
from flows.web.authorizer import origins

MAIN = "http://localhost:17900"
OTHER = OtherHub(api="http://127.0.0.1:8081", public="https://hub.example.org")


@pytest.mark.parametrize(
    ("chosen", "logs_in", "main"),
    [
        ({}, True, MAIN),
        ({"gateway_port": 80}, True, "http://localhost"),
        ({"bind_address": "::1"}, True, MAIN),
        ({"bind_address": "0.0.0.0"}, True, ""),
        ({"bind_address": "192.0.2.7"}, True, ""),
        ({"subdomain_host": "none"}, True, ""),
        ({"bind_address": "localhost"}, True, MAIN),
        ({"subdomain_host": "https://hub.example.org"}, True, "https://hub.example.org"),
        ({"subdomain_host": "https://hub.example.org:443"}, True, "https://hub.example.org"),
        ({"subdomain_host": "http://hub.example.org:443"}, True, "http://hub.example.org:443"),
        ({"other_hub": OTHER}, True, ""),
        ({"hub": False}, False, ""),
        ({"gateway": False}, False, ""),
        ({"hub": True, "gateway": False}, False, ""),
        ({"prefect_server": "http://10.0.0.1:4200"}, False, ""),
        ({"engine": SessionEngine.kubernetes}, False, ""),
        ({"engine": SessionEngine.kubernetes, "hub": True}, True, MAIN),
    ],
)
def test_people_log_in_by_default_and_have_hosts_where_browsers_find_them(
    tmp_path: Path, chosen: dict[str, Any], logs_in: bool, main: str
) -> None:
    settings = Settings(home=tmp_path, **chosen)
    assert (settings.hub_wanted, settings.people_host) == (logs_in, main)
    assert settings.public_url == (main or settings.other_hub.public or settings.gateway_url)


@pytest.mark.parametrize(
    ("host", "parted"),
    [
        ("localhost:17900", True),
        ("LocalHost:17900", True),
        ("localhost.:17900", True),
        ("ada.localhost:17900", True),
        ("ADA.localhost.:17900", True),
        ("127.0.0.1:17900", True),
        ("127.0.0.2:17900", True),
        ("[::1]:17900", True),
        ("[::ffff:127.0.0.1]:17900", True),
        ("", False),  # a browser names one
        (":17900", True),
        ("localhost:port", True),
        ("[::1:17900", True),
        ("hub.example.org", False),
        ("hub.example.org:17900", False),
        ("localhost.example.org:17900", False),
        ("mylocalhost:17900", False),
        ("localhost:8080", False),
        ("127.0.0.1:8080", False),
    ],
)
def test_by_default_they_have_who_come_by_a_name_of_this_machine(tmp_path: Path, host: str, parted: bool) -> None:
    settings = Settings(home=tmp_path)
    assert origins.is_parted(settings, host) is parted
    assert origins.is_main(settings, host) is (not parted or host == "localhost:17900")
    chosen = settings.model_copy(update={"subdomain_host": "https://hub.example.org"})
    assert origins.is_parted(chosen, host) and origins.is_main(chosen, host) is (host == "hub.example.org")
    alone = settings.model_copy(update={"subdomain_host": "none"})
    assert not origins.is_parted(alone, host) and origins.is_main(alone, host) and not origins.host_of(alone, "ada")


def test_the_port_that_browsers_leave_out_is_that_of_http(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, gateway_port=80)
    assert origins.is_parted(settings, "localhost") and origins.is_parted(settings, "ada.localhost")
    assert not origins.is_parted(settings, "hub.example.org")
    assert origins.is_main(settings, "localhost")
    assert origins.host_of(settings, "ada") == "ada.localhost"


@pytest.mark.parametrize(
    ("chosen", "second"),
    [
        ({}, "::1"),
        ({"bind_address": "::1"}, "127.0.0.1"),
        ({"bind_address": "localhost"}, "::1"),
        ({"bind_address": "0.0.0.0"}, ""),
        ({"subdomain_host": "none"}, ""),
        ({"subdomain_host": "https://hub.example.org"}, ""),
        ({"subdomain_host": "http://localhost:17900"}, "::1"),
        ({"hub": False}, ""),
    ],
)
def test_where_browsers_look_for_localhost_the_gateway_has_both_addresses(
    tmp_path: Path, chosen: dict[str, Any], second: str
) -> None:
    assert Settings(home=tmp_path, **chosen).second_loopback == second


def test_a_proxy_may_name_the_port_that_browsers_leave_out(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, subdomain_host="https://hub.example.org:443")
    assert origins.is_main(settings, "hub.example.org:443") and not origins.is_main(settings, "hub.example.org:80")
    assert origins.plain(settings, "ada.hub.example.org:443") == origins.host_of(settings, "ada")
    assert origins.plain(settings, "[::1:443") == "[::1:443"
