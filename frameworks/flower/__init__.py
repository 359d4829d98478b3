"""hocket's codecs inside Flower: what clients send is encoded, and what an encoding loses comes in a later round.

    client.py      `encoded(method)`: a mod of the ClientApp
    server.py      `Decoding(strategy, method)`: any strategy, whose replies come encoded
    updates.py     an array's update as bytes, and back
"""

from hocket.arguments import installed

with installed("flower"):
    from hocket.flower.client import encoded
    from hocket.flower.server import Decoding

__all__ = ["Decoding", "encoded"]
