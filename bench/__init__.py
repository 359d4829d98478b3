"""Questions about speed and trust, a file for each: `python -m hocket.bench.NAME` answers it."""
