"""Rules that forward ports, as iptables prints them."""

from flows.host import forwarding
from flows.host.forwarding import Forwarding
from flows.services import doctor

ONE, TWO = "8c481eaff8f1dbcd7253cecedb84aa28161d4278b47c7c1d4cb0dcdb71f6cb8c", "cbf692d57d9be7b6"
RULES = [
    f'CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \\"podman\\" id: \\"{ONE}\\"" '
    "-m multiport --dports 18000 -j CNI-DN-29d1b63fdaefb2ae32f63",
    f'CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \\"podman\\" id: \\"{TWO}\\"" '
    "-m multiport --dports 80,443 -j CNI-DN-5d102f21437b4df21dcca",
]


def test_each_rule_is_a_container_and_its_ports() -> None:
    listing = "\n".join(["-N CNI-HOSTPORT-DNAT", *(f"-A {rule}" for rule in RULES), ""])
    assert forwarding.parse(listing) == (
        Forwarding(ONE, (18000,), RULES[0]),
        Forwarding(TWO, (80, 443), RULES[1]),
    )
    assert forwarding.parse("") == forwarding.parse("-N CNI-HOSTPORT-DNAT\n") == ()


def test_the_doctor_names_port_and_command() -> None:
    assert doctor.judge_forwardings([]).ok
    found = doctor.judge_forwardings([Forwarding(ONE, (18000,), RULES[0])])
    assert not found.ok and found.seen.startswith("18000: ")
    assert found.fix == f"iptables -t nat -D {RULES[0]}"
