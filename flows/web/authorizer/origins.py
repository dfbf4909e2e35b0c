"""Origins: with `subdomain_host`, the sessions of each person have one of their own in browsers. Pure.

Scripts of one session reach what else is at its origin, with the cookies of the person who looks at it.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from jupyterhub.slugs import safe_slug

from flows.core.settings import Settings

# Of a label in a host name.
_LONGEST = 40


def host_of(settings: Settings, person: str) -> str:
    """The host, with its port, at which the sessions of a person are; empty: they are where the Hub is."""
    return (
        f"{safe_slug(person, max_length=_LONGEST)}.{urlsplit(settings.subdomain_host).netloc}"
        if (settings.subdomain_host)
        else ""
    )


def url_of(settings: Settings, host: str) -> str:
    """The address of such a host, without a path."""
    return f"{urlsplit(settings.subdomain_host).scheme}://{host}"


def is_main(settings: Settings, host: str) -> bool:
    """Whether somebody came to the Hub's own host."""
    return not settings.subdomain_host or host == urlsplit(settings.subdomain_host).netloc
