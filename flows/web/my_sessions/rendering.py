"""Renders the pages: templates, and the headers that go with every page. Pure but for reading them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
from starlette.responses import HTMLResponse

from flows.core.database import now
from flows.core.formatting import short
from flows.gateway import routes
from flows.web.my_sessions import session_view
from flows.web.my_sessions.paths import BASE

_FOLDER = Path(__file__).parent / "templates"
_STYLE = (_FOLDER / "style.css").read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals |= {"style": _STYLE, "base": BASE, "hub": routes.HUB, "now": now}
    filters: dict[str, Callable[..., str]] = {"day": session_view.day, "amounts": session_view.amounts, "short": short}
    environment.filters |= {**filters, "age": lambda built: session_view.age(built, now())}
    return environment


def page(template: str, status: int = 200, **variables: Any) -> HTMLResponse:
    """A page as it is answered."""
    return HTMLResponse(_templates().get_template(template).render(variables), status, headers())


def headers() -> dict[str, str]:
    """The headers of each page: nobody keeps it, frames it, or adds to it; its opener can't reach into it."""
    style = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{style}'; form-action 'self'; base-uri 'none'"
    return {
        "Cache-Control": "no-store",
        "Content-Security-Policy": f"{policy}; frame-ancestors 'none'",
        "Cross-Origin-Opener-Policy": "noopener-allow-popups",
        "Referrer-Policy": "same-origin",
        "X-Content-Type-Options": "nosniff",
    }
