"""Tells people elsewhere what went wrong: chat, mail, pager, or whatever else an Apprise URL of the settings names."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from urllib.parse import urlsplit

from apprise import Apprise, LogCapture

from flows.command import protect, redacted
from flows.settings import Settings

# It writes addresses with their tokens to the console where nobody listens to it.
_log = logging.getLogger("apprise")
_log.addHandler(logging.NullHandler())
_log.propagate = False


def send(title: str, text: str, settings: Settings) -> tuple[str, ...]:
    """Send a message to all addresses of the setting `notify`; returns what wasn't sent, and why, without secrets."""
    return tuple(_failures(title, redacted(text), settings))


def _failures(title: str, text: str, settings: Settings) -> Iterator[str]:
    for number, address in enumerate(settings.notify, start=1):
        url = address.get_secret_value()
        protect(url)
        with LogCapture(level=logging.WARNING, fmt="%(message)s") as said:  # type: ignore[no-untyped-call]
            to = Apprise.instantiate(url)
            if to is None or not to.notify(body=text, title=title):
                kind = urlsplit(url).scheme or "no scheme"
                reason = " ".join(redacted(said.getvalue()).split())
                yield f"`notify` number {number} ({kind}) could not be told: {reason or 'no reason was given'}"
