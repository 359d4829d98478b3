"""Questions about speed and trust, a file for each that can be asked by `python -m hocket.bench.NAME`."""
