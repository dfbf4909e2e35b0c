"""Passes: cookies by which the authorizer knows who somebody is. Pure but for the key and the clock.

A pass says who somebody is, never what they may: that is asked each time.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from typing import Any

from flows.gateway import routes

PASS, STATE, GUEST, TICKET = "refit-pass", "refit-state", "refit-guest", "refit-ticket"
# Where there is TLS, browsers take a cookie with this prefix from no other host, and from no page without TLS.
_HOST = "__Host-"
COOKIES = (f"{_HOST}{PASS}", PASS)
# Seconds. After that the Hub is asked again, which asks for a password only if its own login has ended.
PASS_SECONDS, STATE_SECONDS, TICKET_SECONDS = 8 * 3600, 600, 30


def cookie(*, secure: bool) -> tuple[str, str]:
    """Name and path of the cookie with a pass."""
    return (COOKIES[0], "/") if secure else (PASS, routes.BELOW)


def seal(key: str, purpose: str, seconds: float, **facts: str) -> str:
    """A sealed text of `facts` for so many seconds: nobody without the key can make or change it."""
    content = json.dumps({**facts, "purpose": purpose, "until": time.time() + seconds})
    written = base64.urlsafe_b64encode(content.encode()).decode()
    return f"{written}.{_signature(key, written)}"


def opened(key: str, purpose: str, sealed: str) -> Mapping[str, Any] | None:
    """The values that were given to `seal`; none: it is forged, was made for something else, or has expired."""
    written, _, signature = sealed.partition(".")
    if not hmac.compare_digest(_signature(key, written).encode(), signature.encode()):
        return None
    content: Mapping[str, Any] = json.loads(base64.urlsafe_b64decode(written))
    return content if content["purpose"] == purpose and time.time() < content["until"] else None


def _signature(key: str, written: str) -> str:
    return hmac.new(key.encode(), written.encode(), hashlib.sha256).hexdigest()
