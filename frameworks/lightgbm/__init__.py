"""hocket inside LightGBM: distributed training whose bytes go over hocket, in place of LightGBM's own sockets.

    network.py       `setup(comm)`: this thread's network, until it is freed
    callbacks.pyx    the two functions that LightGBM calls
    halving.py       in which order the ranks' histograms are added
"""

from hocket.arguments import installed

with installed("lightgbm"):
    from hocket.lightgbm.network import Network, setup

__all__ = ["Network", "setup"]
