"""A member proves to another one which of them it is: both know the other's public key by its seat.

The shared secret of two is X25519 (RFC 7748) of one's own key and the other's public one, so a third, a member too, has
it not.  A proof fits one connection: it has that one's key inside, and what was overheard proves nothing elsewhere.
Keys last as long as the process.  In Python: some 2 ms for each other member, once.
"""

from __future__ import annotations

import hmac
import secrets

PRIME = (1 << 255) - 19
BASE = 9
A24 = 121665
NBYTES = 32


class ProcessKey:
    """A process's key."""

    def __init__(self) -> None:
        self._private = secrets.token_bytes(NBYTES)
        self.public = times(self._private, BASE.to_bytes(NBYTES, "little")).hex()
        self._shared: dict[str, bytes] = {}

    def proof(self, public: str, says: str, hears: str, connection: bytes) -> str:
        """With the process of this public key both make the same: `says` tells `hears` who it is, on this connection.

        ValueError: that is no key.
        """
        shared = self._shared.get(public)
        if shared is None:
            shared = self._shared[public] = times(self._private, bytes.fromhex(public))
        return hmac.digest(shared, f"hocket {says} to {hears} ".encode() + connection, "sha256").hex()


def times(scalar: bytes, point: bytes) -> bytes:
    """X25519: the Montgomery ladder."""
    if len(point) != NBYTES:
        raise ValueError(f"a public key of {len(point)} bytes")
    k = int.from_bytes(scalar, "little") & ~7 & (1 << 254) - 1 | 1 << 254
    u = int.from_bytes(point, "little") & (1 << 255) - 1
    x2, z2, x3, z3, swapped = 1, 0, u, 1, 0
    for t in reversed(range(255)):
        bit = k >> t & 1
        if bit != swapped:
            x2, z2, x3, z3 = x3, z3, x2, z2
        swapped = bit
        plus, minus = x2 + z2, x2 - z2
        da, cb = (x3 - z3) * plus % PRIME, (x3 + z3) * minus % PRIME
        aa, bb = plus * plus % PRIME, minus * minus % PRIME
        e = aa - bb
        x3, z3 = (da + cb) ** 2 % PRIME, u * ((da - cb) ** 2 % PRIME) % PRIME
        x2, z2 = aa * bb % PRIME, e * (aa + A24 * e) % PRIME
    if swapped:
        x2, z2 = x3, z3
    return (x2 * pow(z2, PRIME - 2, PRIME) % PRIME).to_bytes(NBYTES, "little")
