"""The page of a session that is away, for people and for programs. Pure.

It asks again by itself, and loads the session in its own place as soon as anything but the waiting page answers.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import asdict
from pathlib import Path

import jinja2

from flows.waiting_page.status import AwayStatus, Why

_FOLDER = Path(__file__).parent
_STYLE, _SCRIPT = ((_FOLDER / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
_PAGE = jinja2.Template((_FOLDER / "page.html").read_text(encoding="utf-8"), autoescape=True)
_SHORTEST = 1


def status_code(status: AwayStatus) -> int:
    """Of the answer: 503, because it is there again later, or 404."""
    return 404 if status.why is Why.unknown else 503


def headers(status: AwayStatus) -> dict[str, str]:
    """The headers of both: when to come again, and that this is nothing to keep."""
    again = {} if status.why is Why.unknown else {"Retry-After": str(max(_SHORTEST, round(status.again)))}
    return {
        **again,
        "Cache-Control": "no-store",
        # The address may hold the token of the session, and the page needs nothing from anywhere.
        "Referrer-Policy": "no-referrer",
        "Content-Security-Policy": (
            f"default-src 'none'; connect-src 'self'; style-src '{_digest(_STYLE)}'; script-src '{_digest(_SCRIPT)}'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
        ),
        "X-Content-Type-Options": "nosniff",
    }


def as_json(status: AwayStatus) -> str:
    """For programs, and for the page itself."""
    since = status.since.isoformat() if status.since else None
    # `message` is what Jupyter's clients show of an answer that is no success.
    message = f"{status.headline}. {status.text}"
    return json.dumps({"refit": "waiting-page", **asdict(status), "since": since, "message": message})


def as_html(status: AwayStatus) -> str:
    """For people."""
    page: str = _PAGE.render(status=status, data=as_json(status), style=_STYLE, script=_SCRIPT)
    return page


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
