"""The laws of a transport (transports/channel.h, transports/base.py), for whoever writes one.  Needs NumPy only.

    python -m hocket.conformance package.module:MyTransport     a class: its channels, between ranks in one process
    python -m hocket.conformance package.module:pair            a function: see below

    from hocket.conformance import LAWS, InProcess
    @pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
    def test_my_transport(law):
        with InProcess(MyTransport) as ranks:
            law(ranks.pair)

`pair()` gives two `Side`s that are connected to each other; `sides(size)[a][b]` is rank a's side towards rank b (None
where a == b).  Laws in LAWS take a pair, those in GROUP_LAWS take sides.

    ends.py          a rank of a law: an engine over a side
    in_process.py    pairs and sides from a transport class
    laws.py          the laws
"""

from hocket.conformance.ends import Pair, Side, Sides
from hocket.conformance.in_process import InProcess
from hocket.conformance.laws import GROUP_LAWS, LAWS, NotOfferedError

__all__ = ["GROUP_LAWS", "LAWS", "InProcess", "NotOfferedError", "Pair", "Side", "Sides"]
