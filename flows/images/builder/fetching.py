"""Files that recipes take from the internet beside packages, and whether they can be had here."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import httpx

from flows.core.authorities import authorities
from flows.core.outside import Bounds, Client, TooLarge
from flows.core.settings import Settings
from flows.core.threads import each

_PATIENCE = 5.0  # seconds


def unreachable(urls: Collection[str], settings: Settings) -> Mapping[str, str]:
    """URL → why it can't be fetched from this machine; those that can, or may, are left out. Nothing is kept."""
    if not urls:
        return {}
    with Client(authorities(settings)) as client:

        def problem(url: str) -> str:
            try:
                answer = client.fetch("GET", url, Bounds(0, _PATIENCE))  # some don't answer HEAD
                return "" if 200 <= answer.status < 300 else f"it answers {answer.status}"
            except TooLarge:  # it is there; the content is left alone
                return ""
            except httpx.TimeoutException:
                return ""  # slow or shut, nobody knows: the build will tell
            except (httpx.RequestError, httpx.InvalidURL) as error:
                return str(error) or type(error).__name__

        problems = each(problem, urls)
    return {url: why for url, why in problems.items() if why}
