from typing import Any

class Loopback:
    capsule: Any
