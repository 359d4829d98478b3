"""Numbers as people read them."""

from __future__ import annotations

from collections.abc import Iterable


def latency(seconds: float) -> str:
    """0.52 us, 45 us, 12 ms."""
    for unit, scale in (("us", 1e-6), ("ms", 1e-3)):
        if seconds < 999.5 * scale:
            return f"{_digits(seconds / scale)} {unit}"
    return f"{_digits(seconds)} s"


def rate(bytes_a_second: float) -> str:
    """11 MB/s, 1.2 GB/s."""
    for unit, scale in (("kB/s", 1e3), ("MB/s", 1e6)):
        if bytes_a_second < 999.5 * scale:
            return f"{_digits(bytes_a_second / scale)} {unit}"
    return f"{_digits(bytes_a_second / 1e9)} GB/s"


def amount(cost: str, seconds: float) -> str:
    """The words for a cost: `latency` in seconds, `rate` in seconds a byte."""
    return latency(seconds) if cost == "latency" else rate(1 / seconds)


def times(factor: float) -> str:
    """2.4 times, 9 times."""
    return f"{_digits(factor)} times"


def ranks(numbers: Iterable[int]) -> str:
    """rank 3; ranks 0-2, 5."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    texts = [str(a) if a == b else f"{a}-{b}" for a, b in spans]
    return f"rank{'s' if len(texts) > 1 or '-' in texts[0] else ''} {', '.join(texts)}"


def listed(words: Iterable[str], most: int = 5) -> str:
    """a, b and c; the first few, and how many more there are."""
    some = list(words)
    if len(some) > most:
        some = [*some[: most - 1], f"{len(some) - most + 1} more"]
    return some[0] if len(some) == 1 else f"{', '.join(some[:-1])} and {some[-1]}"


def _digits(value: float) -> str:
    return f"{value:.2f}" if value < 0.995 else f"{value:.1f}" if value < 9.95 else f"{value:.0f}"
