class Placed:
    stream: int
    kernel: int
