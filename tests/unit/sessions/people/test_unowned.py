"""Sessions into which the gateway lets nobody, because no account is their owner's."""

from __future__ import annotations

from pathlib import Path

from flows.core.database import open_database
from flows.core.settings import Settings
from flows.core.settings.spans import Span
from flows.sessions.model import Access, HomeRef, Session, TokenRef
from flows.sessions.people import rights
from flows.sessions.people.entitlements import Account, Rights
from flows.sessions.store import Store


def test_a_session_is_named_until_its_owner_has_an_account(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    database = open_database(settings.database)
    store = Store(database)

    def add(name: str, owner: str) -> None:
        digest, home = f"sha256:{64 * 'a'}", tmp_path / "homes" / name
        access = Access(port=8888)
        store.add(
            name,
            lambda uid: Session(
                name, "p", "2026a", digest, uid, HomeRef(str(home)), TokenRef(str(tmp_path / "token")), access, {}
            ),
            uids=Span(first=300_000, last=300_999),
            owner=owner,
        )

    assert rights.unowned(settings, database) == ()
    for name, owner in {"adas": "ada", "nobodys": "", "bobs": "bob"}.items():
        add(name, owner)
    assert rights.unowned(settings, database) == ("adas", "bobs", "nobodys"), "the Hub has said nothing yet"
    rights.file(settings).parent.mkdir(parents=True)
    rights.keep(settings, rights.Heard(Rights(accounts={"ada": Account("ada")})))
    assert rights.unowned(settings, database) == ("bobs", "nobodys")
    store.give_home("nobodys", "ada")
    assert rights.unowned(settings, database) == ("bobs",)
    assert rights.unowned(Settings(home=tmp_path, hub=False), database) == ()
