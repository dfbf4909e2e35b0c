"""The keys of a home: one that signs, and all whose signatures count: its own, former and new, and `trusted_keys`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qsl, unquote
from uuid import uuid4

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)
from securesystemslib.exceptions import UnsupportedLibraryError

from flows.core.atomic_files import write_whole
from flows.core.errors import RefitError
from flows.core.lazily import lazily
from flows.core.programs import program_output
from flows.core.settings import Settings

with lazily(globals()):
    from securesystemslib.signer import CryptoSigner, HSMSigner, Key, Signer, SSlibKey

HARDWARE = "pkcs11:"
_MADE_UP, _PUBLIC = "signing.pem", ".pub"
_LARGEST = 1 << 16  # bytes of a file with a key
_PEM = "-----BEGIN "


class BadKey(RefitError):
    """A key of the settings that can't be used."""

    def __init__(self, setting: str, why: str, hint: str) -> None:
        super().__init__(f"A key that `{setting}` names can't be used.", why=why, hint=hint)


class Keys:
    """The keys of these settings."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def signer(self) -> Signer:
        """The signer; where nobody chose a key, one is made up at the first need.

        Raises:
            BadKey: the one that was chosen can't be used.
        """
        chosen = self._settings.signing_key
        if chosen.startswith(HARDWARE):
            signer: Signer = _hardware(chosen)
        else:
            signer = _read_private(self._settings.home / chosen if chosen else self._made_up())
        self._remember(signer.public_key)
        return signer

    def renew(self) -> str:
        """Generate another signing key; signatures of the former go on to count. Returns the new one's id.

        Raises:
            BadKey: a key was chosen by `signing_key`: that is where another one is named.
        """
        if self._settings.signing_key:
            raise BadKey("signing_key", "It is not of Refit's making.", "let `signing_key` name the new key.")
        if (self._folder / _MADE_UP).exists():
            self.signer()  # its public half stays
        write_whole(self._folder / _MADE_UP, CryptoSigner.generate_ed25519().private_bytes, private=True)
        return self.signer().public_key.keyid

    def trusted(self) -> dict[str, Key]:
        """Key id → key, of all whose signatures count here.

        Raises:
            BadKey: a key of the settings can't be read.
        """
        # A signature by hardware counts by the public half that was kept: it may be away.
        chosen = self._settings.signing_key
        if (chosen and not chosen.startswith(HARDWARE)) or (not chosen and (self._folder / _MADE_UP).exists()):
            self.signer()
        own = (file.read_bytes() for file in sorted(self._folder.glob(f"*{_PUBLIC}")))
        others = map(self._written, self._settings.trusted_keys)
        return {key.keyid: key for key in (_public(pem) for pem in (*own, *others))}

    @property
    def _folder(self) -> Path:
        folder = self._settings.folder("keys")
        folder.chmod(0o700)
        return folder

    def _made_up(self) -> Path:
        """The private key of this home, which its owner alone can read."""
        file = self._folder / _MADE_UP
        if not file.exists():
            draft = self._folder / f".{uuid4().hex}"
            write_whole(draft, CryptoSigner.generate_ed25519().private_bytes, private=True)
            with suppress(FileExistsError):  # another process was faster
                os.link(draft, file)
            draft.unlink()
        return file

    def _remember(self, key: Key) -> None:
        """Keep the public half of a key that signs: its signatures count as long as this file is there."""
        file = self._folder / f"{key.keyid[:16]}{_PUBLIC}"
        if not file.exists():
            write_whole(file, pem_of(key))

    def _written(self, key: str) -> bytes:
        """A key of `trusted_keys`: PEM, or the file that it is in."""
        if key.lstrip().startswith(_PEM):
            return key.encode()
        file = self._settings.home / key
        try:
            with file.open("rb") as opened:
                return opened.read(_LARGEST)
        except OSError as error:
            raise BadKey("trusted_keys", f"{file}: {error.strerror}.", "name a PEM file, or write the PEM.") from None


def pem_of(key: Key) -> str:
    """A public key as another Refit takes it in `trusted_keys`."""
    if not isinstance(key, SSlibKey):
        raise BadKey("signing_key", "It is of a kind that has no PEM.", "choose an ed25519, ECDSA or RSA key.")
    if key.keytype != "ed25519":
        return str(key.keyval["public"])
    public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(key.keyval["public"]))
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def _public(pem: bytes) -> Key:
    try:
        return SSlibKey.from_crypto(load_pem_public_key(pem))
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        hint = "give a public key of ed25519, ECDSA or RSA as PEM; `refit images keys` prints a Refit's own."
        raise BadKey("trusted_keys", str(error), hint) from None


def _read_private(file: Path) -> Signer:
    try:
        if file.stat().st_mode & 0o077:
            raise BadKey("signing_key", f"Others than its owner can read {file}.", f"run `chmod 600 {file}`.")
        with file.open("rb") as opened:
            private = load_pem_private_key(opened.read(_LARGEST), None)
        return CryptoSigner(private)
    except OSError as error:
        raise BadKey("signing_key", f"{file}: {error.strerror}.", "name a file that is there and yours.") from None
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BadKey("signing_key", f"{file}: {error}", "write it as PEM (PKCS#8), without a password.") from None


def _hardware(uri: str) -> Signer:
    """The key that a PKCS#11 URI (RFC 7512) names; its PIN is in the file that `pin-source` names."""
    parts = _parts(uri)
    if not (parts.get("module-path") and parts.get("pin-source") and parts.get("id")):
        hint = "write it as pkcs11:token=NAME;id=%02?module-path=/…/module.so&pin-source=/…/file."
        raise BadKey("signing_key", "The URI has no `id`, `module-path` or `pin-source`.", hint)
    # Where the library looks for the module; no option of its own says it.
    os.environ["PYKCS11LIB"] = parts["module-path"]
    number = int.from_bytes(parts["id"].encode("latin-1"), "big")

    def pin(_: str) -> str:
        word = Path(parts["pin-source"].removeprefix("file:")).read_text(encoding="utf-8").strip()
        program_output.protect(word)
        return word

    try:
        scheme, public = HSMSigner.import_(number, parts.get("token"), pin)
        return HSMSigner.from_priv_key_uri(scheme, public, pin)
    except UnsupportedLibraryError as error:
        hint = "pip install 'refit[pkcs11]', where Refit itself is installed."
        raise BadKey("signing_key", str(error), hint) from None
    except (OSError, ValueError, RuntimeError) as error:
        hint = "check that the token is there, and holds an ECDSA key (P-256 or P-384) with this `id`."
        raise BadKey("signing_key", str(error) or type(error).__name__, hint) from None


def _parts(uri: str) -> Mapping[str, str]:
    path, _, query = uri.removeprefix(HARDWARE).partition("?")
    named = (part.partition("=") for part in re.split("[;&]", path) if part)
    # An id is bytes, written in percent: latin-1 keeps each of them.
    return {
        **{name: unquote(value, "latin-1" if name == "id" else "utf-8") for name, _, value in named},
        **dict(parse_qsl(query)),
    }
