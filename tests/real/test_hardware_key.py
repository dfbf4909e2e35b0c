"""A key in hardware, by PKCS#11: SoftHSM in the place of a device."""

from __future__ import annotations

from pathlib import Path

import pkcs11
import pytest
from pkcs11.util.ec import encode_named_curve_parameters

from flows.core.database import open_database
from flows.core.programs import command
from flows.core.settings import Settings
from flows.images.manifests import canonical, digest_of
from flows.signing.keys import BadKey, Keys
from flows.signing.trust import Trust, statement

pytestmark = pytest.mark.long
MODULE, PIN = Path("/usr/lib/softhsm/libsofthsm2.so"), "9482"


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of an ECDSA key on a token of this module's."""
    folder = tmp_path_factory.mktemp("token")
    (folder / "tokens").mkdir()
    (folder / "softhsm2.conf").write_text(f"directories.tokendir = {folder}/tokens\n")
    (folder / "pin").write_text(f"{PIN}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTHSM2_CONF", str(folder / "softhsm2.conf"))
        init = ["softhsm2-util", "--init-token", "--free", "--label", "refit", "--pin", PIN, "--so-pin", "5678"]
        command.run(init, env={"SOFTHSM2_CONF": str(folder / "softhsm2.conf")})
        token = pkcs11.lib(str(MODULE)).get_token(token_label="refit")
        with token.open(rw=True, user_pin=PIN) as session:
            curve = {pkcs11.Attribute.EC_PARAMS: encode_named_curve_parameters("secp256r1")}
            parameters = session.create_domain_parameters(pkcs11.KeyType.EC, curve, local=True)
            parameters.generate_keypair(store=True, id=b"\x02", label="images")
    return f"pkcs11:token=refit;id=%02?module-path={MODULE}&pin-source={folder}/pin"


def test_what_hardware_signs_counts_also_while_it_is_away(uri: str, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home", signing_key=uri)
    trust = Trust(settings, open_database(settings.database))
    envelope = trust.sign(canonical(statement("kind", "name", digest_of(b"x"), {})))
    away = settings.model_copy(update={"signing_key": uri.replace("token=refit", "token=away")})
    signed = Trust(away, open_database(settings.database)).opened(envelope)
    assert (signed.subject, signed.key) == (digest_of(b"x"), trust.signer.public_key.keyid)
    assert not (settings.home / "keys" / "signing.pem").exists()
    with pytest.raises(BadKey, match="signing_key"):
        Keys(away).signer()


def test_a_wrong_pin_or_key_is_told(uri: str, tmp_path: Path) -> None:
    (tmp_path / "pin").write_text("0000")
    wrong_pin = uri.partition("&pin-source=")[0] + f"&pin-source={tmp_path}/pin"
    for wrong in (wrong_pin, uri.replace("id=%02", "id=%07"), uri.replace(str(MODULE), "/nowhere.so")):
        trust = Trust(Settings(home=tmp_path / "home", signing_key=wrong), open_database(f"sqlite:///{tmp_path}/x.db"))
        with pytest.raises(BadKey, match="signing_key") as caught:
            trust.sign(b"{}")
        assert "0000" not in str(caught.value)
