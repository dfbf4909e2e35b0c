"""The link that logs somebody in once, from this machine, for real."""

from __future__ import annotations

import httpx

from flows.web.hub import entering
from flows.web.people.client import HubClient
from tests.support.hub import Hub, Person
from tests.support.people import People
from tests.support.waiting import PATIENTLY


def test_a_link_logs_somebody_in_once_and_opens_the_session(hub: Hub, people: People, lin: Person) -> None:
    HubClient(hub.settings).add("demo", admin=False)
    people.session("demo", "demo")
    link = entering.link(hub.settings, "demo", "/session/demo/api")
    browser = Person(hub, "lin")
    browser.log_in()
    assert browser.sees("/session/papers/api").startswith("this is")
    landed = browser.client.get(link)  # whoever else was logged in here
    assert landed.url.path == "/session/demo/api" and landed.text.startswith("this is /session/demo")
    assert browser.client.get("/session/papers/api").status_code == 403
    assert browser.client.get(link).status_code == 410
    elsewhere = Person(hub, "demo")
    assert elsewhere.client.get(link).status_code == 410


def test_a_link_works_on_this_machine_alone_and_leads_to_a_session(hub: Hub, people: People) -> None:
    HubClient(hub.settings).add("demo2", admin=False)
    for to in ("//evil.example", "https://evil.example", "/hub/token", "/session//evil.example"):
        landed = Person(hub, "demo2").client.get(entering.link(hub.settings, "demo2", to))
        assert landed.url.path == "/hub/home"
    far = entering.link(hub.settings, "demo2", "/session/x").replace(hub.settings.gateway_url, hub.settings.hub_url)
    headers = {"X-Forwarded-For": "127.0.0.1, 192.0.2.7"}
    assert httpx.get(far, headers=headers, **PATIENTLY).status_code == 403
    old = entering.link(hub.settings, "demo2", "/session/x")
    entering.link(hub.settings, "demo2", "/session/x")
    assert Person(hub, "demo2").client.get(old).status_code == 410
    ghost = entering.link(hub.settings, "ghost", "/session/x")
    assert Person(hub, "ghost").client.get(ghost).status_code == 410
    assert "/hub/login" in str(Person(hub, "demo2").client.get("/hub/home").url)


def test_addresses_of_this_machine_are_known_by_the_last_hop() -> None:
    for here in ("127.0.0.1", "192.0.2.1, 127.0.0.1", "::1", "::ffff:127.0.0.1"):
        assert entering.is_here(here)
    for elsewhere in ("", "192.0.2.1", "127.0.0.1, 192.0.2.1", "x", "127.0.0.1,"):
        assert not entering.is_here(elsewhere)
