"""Origins: the sessions of each person have one of their own in browsers, where `people_host` is set. Pure.

Scripts of one session reach what else is at its origin, with the cookies of the person who looks at it.
"""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

from jupyterhub.slugs import safe_slug

from flows.core.settings import Settings
from flows.core.settings.hosts import as_browsers_say

# Of a label in a host name.
_LONGEST = 40
_HTTP_PORT = 80


def is_parted(settings: Settings, host: str) -> bool:
    """Whether sessions have hosts of their own for people who come to this host.

    All have where `subdomain_host` says so. By default those have who come by a name of this machine to the gateway's
    own port. A proxy or a tunnel in front of the gateway passes another host on, and may have no others below it.
    """
    if not settings.people_host:
        return False
    return bool(settings.subdomain_host) or _is_of_this_machine(host, settings.gateway_port)


def _is_of_this_machine(host: str, port: int) -> bool:
    """A host that nobody can read is taken for one, at which no pass counts."""
    try:
        split = urlsplit(f"http://{host}")
        if (split.port or _HTTP_PORT) != port:
            return False
    except ValueError:
        return True
    name = (split.hostname or "localhost").rstrip(".")
    return name == "localhost" or name.endswith(".localhost") or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def host_of(settings: Settings, person: str) -> str:
    """The host, with its port, at which the sessions of a person are; empty: they are where the Hub is."""
    main = urlsplit(settings.people_host).netloc
    return f"{safe_slug(person, max_length=_LONGEST)}.{main}" if main else ""


def url_of(settings: Settings, host: str) -> str:
    """The address of such a host, without a path."""
    return f"{urlsplit(settings.people_host).scheme}://{host}"


def is_main(settings: Settings, host: str) -> bool:
    """Whether people who came to this host log in there."""
    return not is_parted(settings, host) or plain(settings, host) == urlsplit(settings.people_host).netloc


def plain(settings: Settings, host: str) -> str:
    """A host as browsers name it: some proxies add the port that the scheme has anyway."""
    try:
        return urlsplit(as_browsers_say(f"{urlsplit(settings.people_host).scheme or 'http'}://{host}")).netloc
    except ValueError:  # nobody can read it
        return host
