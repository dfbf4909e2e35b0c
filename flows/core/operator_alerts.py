"""Tells people elsewhere what went wrong or is to come: by chat, mail, pager, or whatever an Apprise URL names."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from pydantic import SecretStr

from flows.core.formatting import on_a_line, printable
from flows.core.lazily import lazily
from flows.core.programs.program_output import protect, redacted
from flows.core.settings import Settings

with lazily(globals()):
    from apprise import Apprise, LogCapture, NotifyFormat  # a tenth of what the page of sessions imports

# It writes addresses with their tokens to the console where nobody listens to it.
_log = logging.getLogger("apprise")
_log.addHandler(logging.NullHandler())
_log.propagate = False


def send(title: str, text: str, settings: Settings) -> tuple[str, ...]:
    """Send a message to all addresses of the setting `notify`; returns what wasn't sent, and why, without secrets."""
    return send_to(settings.notify, title, text)


def addresses_of(session: str, settings: Settings, owner: str = "") -> tuple[SecretStr, ...]:
    """Where the owner of a session is told what happens to it: `notify_owners`, by session or owner; `*` means all."""
    owners = settings.notify_owners
    return tuple(url for name in dict.fromkeys((session, owner, "*")) for url in owners.get(name, ()))


def send_to(addresses: Sequence[SecretStr], title: str, text: str, setting: str = "notify") -> tuple[str, ...]:
    """Send a message to Apprise URLs; returns what wasn't sent, a line for each, and why, without secrets."""
    return tuple(_failures(addresses, on_a_line(title), printable(redacted(text)), setting))


def _failures(addresses: Sequence[SecretStr], title: str, text: str, setting: str) -> Iterator[str]:
    for number, address in enumerate(addresses, start=1):
        url = address.get_secret_value()
        protect(url)
        with LogCapture(level=logging.WARNING, fmt="%(message)s") as captured:  # type: ignore[no-untyped-call]
            to = Apprise()
            # Said to be plain text, it is escaped where it becomes a page, as in a mail.
            if not to.add(url) or not to.notify(body=text, title=title, body_format=NotifyFormat.TEXT):
                kind = urlsplit(url).scheme or "no scheme"
                reason = on_a_line(" ".join(redacted(captured.getvalue()).split()))
                yield f"`{setting}` number {number} ({kind}) could not be told: {reason or 'no reason was given'}"
