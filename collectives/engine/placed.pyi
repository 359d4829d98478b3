class Placed:
    stream: int
