"""Other ranks' words of where they listen: an address, or a reason not to use it."""

from __future__ import annotations

import random

import pytest

from hocket.control.reactor import Reactor
from hocket.transports.base import Context
from hocket.transports.tcp.offers import network_id
from hocket.transports.tcp.transport import HEALS, TcpTransport

GOOD = {"host": "10.0.0.1", "port": 4000, "network": network_id(), "encrypts": False}


def mutant(dice: random.Random) -> object:
    """An offer in which something is missing, or is another thing."""
    strange = [None, 0, -1, 65536, 1.5, "", "x", "10.0.0.1 ", [], {}, [1], {"host": 1}, True, "\0", "9" * 5000]
    offer: dict[str, object] = {**GOOD}
    for key in dice.sample([*GOOD], dice.randrange(1, 4)):
        if dice.random() < 0.3:
            del offer[key]
        else:
            offer[key] = dice.choice(strange)
    return dice.choice(strange) if dice.random() < 0.2 else offer


@pytest.mark.parametrize("encrypt", [False, True])
def test_any_offer_is_an_address_or_a_reason(encrypt: bool) -> None:
    reactor, dice = Reactor(), random.Random(20261122)
    transport = TcpTransport(Context(0, 2, b"k" * 32, "job", reactor, encrypt=encrypt))
    try:
        assert (transport.reach([None, {**GOOD, "encrypts": encrypt}])[1]) is None
        taken = 0
        for _ in range(1000):
            offer = mutant(dice)
            mine, reason = transport.reach([None, offer])
            assert mine and (reason is None or isinstance(reason, str)), offer
            if reason is None:
                host, port = transport.addresses[1]
                assert isinstance(host, str) and 0 < port < 65536 and transport.detail(1) is not None
                taken += 1
        assert taken < 500
    finally:
        reactor.close()


@pytest.mark.parametrize("heals", [None, 0, HEALS, HEALS + 1, "1"])
def test_two_versions_bargain_or_say_what_differs(heals: object) -> None:
    """Another version of what mends: streams that do not heal, at both ends.  Another HOCKET_CHECK: a reason."""
    reactor = Reactor()
    transport = TcpTransport(Context(0, 2, b"k" * 32, "job", reactor))
    far = {**GOOD, "network": "elsewhere", **({} if heals is None else {"heals": heals})}
    try:
        assert transport.reach([None, far])[1] is None
        assert (1 in transport.healing) == (heals == HEALS)
        assert "HOCKET_CHECK must be the same" in str(transport.reach([None, {**far, "checks": True}])[1])
    finally:
        reactor.close()
