"""The certificate authorities that Refit trusts."""

from __future__ import annotations

import ssl
from functools import lru_cache
from pathlib import Path

from flows.core.documents import Mistake, Mistakes
from flows.core.settings import Settings


def authorities(settings: Settings) -> ssl.SSLContext:
    """Whom TLS trusts: the authorities of `ca_bundle`, else those of the system.

    Raises:
        Mistakes: the file holds no certificates.
    """
    try:
        return _trusting(settings.ca_bundle, settings.ca_bundle.stat().st_mtime_ns if settings.ca_bundle else 0)
    except OSError as error:
        file = settings.ca_bundle or Path(ssl.get_default_verify_paths().openssl_cafile)
        what = f"`ca_bundle` names this file, which can't be used: {error}"
        raise Mistakes([Mistake(file, 0, what, "let it name a PEM file of certificates")]) from None


@lru_cache(maxsize=4)
def _trusting(file: Path | None, _written: int) -> ssl.SSLContext:
    """To read a hundred certificates takes longer than most questions that are asked with them."""
    return ssl.create_default_context(cafile=file)
