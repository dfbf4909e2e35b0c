"""Parts that this machine lacks for Refit, and parts of Refit that need a person; a finding for each, and its mending.

Each check is a plain function, most in `NEEDED` or `OWN`; most split into asking the machine and a pure judgement.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from flows.core.outside import Bounds, Client
from flows.core.settings import Settings
from flows.core.threads import at_once
from flows.locks.simple_index import login, without_login
from flows.services.doctor_cluster import builds, cluster
from flows.services.doctor_containers import containers, enclosure, ingress, kernel, root, walls
from flows.services.doctor_findings import Check, Finding
from flows.services.doctor_home import disk, gateway, home, hub, ports, supervisor
from flows.services.doctor_others import others
from flows.services.doctor_programs import jump, pictures, programs, python
from flows.services.doctor_pull import pull
from flows.services.doctor_sessions import aliases, bounds, moves, pool, records
from flows.sessions import engines

INDEX_SECONDS = 2.5


def examine(settings: Settings, checks: Sequence[Check] = ()) -> tuple[Finding, ...]:
    """All findings of some checks or of all, in their order; under 3 seconds once `host` has found out its facts.

    Where sessions are in a cluster, `pull` waits for one of its nodes.
    """
    chosen = checks or (*NEEDED, pictures, pull, *OWN)
    if settings.in_cluster:
        left_out = _OF_CONTAINERS + (_OF_MACHINES if engines.is_pod(settings) else ())
        chosen = tuple(check for check in chosen if check not in left_out)
    return tuple(chain.from_iterable(at_once(lambda check: tuple(check(settings)), chosen, len(chosen))))


# --- Programs -------------------------------------------------------------------------------------------------------


# --- Containers -----------------------------------------------------------------------------------------------------


# --- Room -----------------------------------------------------------------------------------------------------------


# --- The world outside ----------------------------------------------------------------------------------------------


def index(settings: Settings) -> Iterable[Finding]:
    """Whether the package index answers, and its certificate is signed by an authority that is trusted."""
    url = settings.pip_index_url.get_secret_value() or "https://pypi.org/simple/"
    yield _answer(url.rstrip("/") + "/pip/", settings.ca_bundle)


def _answer(url: str, ca_bundle: Path | None) -> Finding:
    # Without what may be secret in it.
    thing = f"package index {urlsplit(url).hostname}"
    try:
        context = ssl.create_default_context(cafile=str(ca_bundle) if ca_bundle else None)
    except (OSError, ssl.SSLError) as error:
        return Finding(
            "CA bundle", False, f"{ca_bundle} can't be used: {error}", "let REFIT_CA_BUNDLE name a PEM file."
        )
    try:
        with Client(context) as client:
            status = client.fetch("HEAD", without_login(url), Bounds(0, INDEX_SECONDS), private=login(url)).status
    except (httpx.RequestError, httpx.InvalidURL) as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            hint = "let REFIT_CA_BUNDLE name the PEM file with the authority of your network."
            return Finding(thing, False, "its certificate is signed by no trusted authority", hint)
        hint = "check the network and its proxy, or let REFIT_PIP_INDEX_URL name an index that can be reached."
        return Finding(thing, False, f"doesn't answer: {error or type(error).__name__}", hint)
    hint = "check REFIT_PIP_INDEX_URL: the address, user and password."
    return Finding(thing, status < 400, f"answers with status {status}", hint)


# --- What is Refit's own --------------------------------------------------------------------------------------------


NEEDED: tuple[Check, ...] = (
    *(python, programs, root, containers, kernel, enclosure, ingress, disk, home),
    *(ports, gateway, hub, jump, walls, index, cluster, builds, others),
)
OWN: tuple[Check, ...] = (supervisor, pool, bounds, moves, records, aliases)
# Sessions on Kubernetes need none of these.
_OF_CONTAINERS: tuple[Check, ...] = (enclosure, ingress, walls, pool, bounds)
# A Refit that is a Pod itself starts no container and builds nothing, and nobody installs a program there.
_OF_MACHINES: tuple[Check, ...] = (root, containers, kernel, pictures)
