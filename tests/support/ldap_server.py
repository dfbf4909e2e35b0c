"""An LDAP server of a few people, in memory: `python -m tests.support.ldap_server PASSWORD NAME…` prints its port."""

from __future__ import annotations

import sys

from ldaptor.inmemory import ReadOnlyInMemoryLDAPEntry
from ldaptor.interfaces import IConnectedLDAPEntry
from ldaptor.protocols.ldap.ldapserver import LDAPServer
from twisted.internet import reactor
from twisted.internet.protocol import ServerFactory
from twisted.python.components import registerAdapter

TREE = "ou=people,dc=example,dc=org"


class People(ServerFactory):
    """All connections see the same people."""

    protocol = LDAPServer

    def __init__(self, password: str, names: list[str]) -> None:
        self.root = ReadOnlyInMemoryLDAPEntry("dc=org", {"objectClass": ["dcObject"], "dc": ["org"]})
        school = self.root.addChild("dc=example", {"objectClass": ["dcObject"], "dc": ["example"]})
        people = school.addChild("ou=people", {"objectClass": ["organizationalUnit"], "ou": ["people"]})
        for name in names:
            person = {"objectClass": ["inetOrgPerson"], "uid": [name], "cn": [name], "sn": [name]}
            people.addChild(f"uid={name}", {**person, "userPassword": [password]})


def main() -> None:
    """Serve until this process is ended."""
    registerAdapter(lambda people: people.root, People, IConnectedLDAPEntry)
    _, password, *names = sys.argv
    port = reactor.listenTCP(0, People(password, names), interface="127.0.0.1")
    print(port.getHost().port, flush=True)
    reactor.run()


if __name__ == "__main__":
    main()
