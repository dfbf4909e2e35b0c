"""The token that the Prefect server wants with each POST; its own client sends it, others get it here."""

from __future__ import annotations

from uuid import uuid4

import httpx

_US = str(uuid4())
_NONE = (httpx.codes.UNPROCESSABLE_ENTITY, httpx.codes.NOT_FOUND)


def headers(server: httpx.Client) -> dict[str, str]:
    """The headers; none for a server that doesn't ask for them, as one elsewhere may not.

    Args:
        server: a client of its API, with its login.

    Raises:
        httpx.HTTPError: it gives no token.
    """
    answer = server.get("/csrf-token", params={"client": _US})
    if answer.status_code in _NONE:
        return {}
    return {
        "Prefect-Csrf-Client": _US,
        "Prefect-Csrf-Token": str(answer.raise_for_status().json()["token"]),
    }
