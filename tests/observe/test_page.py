"""The report's page, in words and in a real browser (`make test-browser`)."""

from __future__ import annotations

import dataclasses
import html.parser
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket.arguments import human
from hocket.observe.clocks import Ping
from hocket.observe.findings import Findings, culprits, find, union
from hocket.observe.merging import merge
from hocket.observe.page.binned import binned
from hocket.observe.page.make import page
from hocket.observe.sentences import printable, seconds, sentence, summary
from hocket.observe.timeline import Timeline, Track, slices
from support.ring_traces import SECOND, Link, computed, good, recorded, ring, slow

DAY = 86_400_000_000_000
HOSTILE = "</script><script>document.title='x'</script><img src=x onerror=alert(1)>&\"'\x1b[31m\u202e"


def report(late: int | None = None, link: Link = good, every: int = 4) -> Findings:
    ran = ring(4, 4 << 16, computed(4, late, every), link)
    return find(merge(recorded(4, ran, ("anna", "anna", "berta", "berta"), (0, 0, DAY, DAY))))


def hostile() -> Findings:
    """Names that want to be more than text."""
    found = report(late=2).timeline
    found.names = [HOSTILE] * len(found.names)
    found.processes = dict.fromkeys(found.processes, HOSTILE)
    found.about["ranks"]["1"]["host"] = HOSTILE
    found.about["calls"] = {HOSTILE: {"collective": HOSTILE, "site": HOSTILE, "algorithm": HOSTILE}}
    return find(found)


def test_a_link_that_is_slow_now_and_then_is_not_said_to_be_slower_than_others() -> None:
    findings = report(link=slow)
    same = [dataclasses.replace(each, rate=each.usual) for each in findings.links]
    words = sentence(dataclasses.replace(findings, links=same), ("link", 1, 2), 1.0)
    better = r"in its better half it carried [\d.]+ .B/s, as others of its kind"
    link = r"The link from host anna to host berta \(rank 1 to rank 2\)"
    assert re.match(rf"{link} was slow at times \({better}\): ", words), words


def test_a_late_rank_in_words() -> None:
    words = summary(report(late=1))
    said = re.fullmatch(
        r"Rank 1 made the others wait (\d+) ms of (\d+) ms, in 10 of 40 calls\. It came to the calls later than the"
        r" others\.", words[1],
    )  # fmt: skip
    assert said and 140 < int(said[1]) < 155 and int(said[2]) > 200, words
    assert words[0].startswith("4 ranks on 2 hosts, ") and "clocks of the hosts agree within" in words[2]


def test_a_slow_link_in_words() -> None:
    def far(source: int, dest: int, nbytes: int) -> float:
        return slow(0, 1, nbytes) if (source, dest) == (1, 2) else good(source, dest, nbytes)

    ran = ring(4, 4 << 16, computed(4), far)
    hosts = ("anna", "anna", "berta", "berta")
    at = [SECOND, SECOND + 370_000_000]  # one way takes 20 us for a ping, whatever the link carries
    pings = [Ping(t, t + 20_000, t + 21_000, t + 41_000) for t in at]
    words = summary(find(merge(recorded(4, ran, hosts), {2: pings})))
    assert re.match(
        r"The link from host anna to host berta \(rank 1 to rank 2\) carried 49\.\d MB/s where others of its kind carry"
        r" 9\d\d MB/s: that made the ranks wait \d+ ms of \d+ ms, in 40 of 40 calls\.", words[1],
    ), words  # fmt: skip


def test_nobody_is_named_where_all_is_well_or_once() -> None:
    assert summary(report())[1].endswith("No rank and no link stands out.")
    assert report(late=1, every=39).culprits == []  # twice in 40 calls: chance


def test_one_that_is_like_the_others_is_not_named() -> None:
    found = report(late=1)
    blame = found.blame
    assert [cause for cause, _ in culprits(blame, range(4), [])] == [("late", 1)]
    for rank in (0, 2, 3):
        blame.seconds["late", rank] = blame.seconds["late", 1] / 2
    assert culprits(blame, range(4), []) == []


def test_the_seconds_of_a_rank_add_up() -> None:
    found = report(late=1)
    for rank in found.ranks:
        assert rank.computing + rank.moving + rank.waiting == pytest.approx(rank.span, rel=1e-6)
    assert found.ranks[0].calls == 40 and sum(c.count for c in found.calls) == 160
    assert 0.5 < found.efficiency < 1


def test_what_overlaps_counts_once() -> None:
    rows = slices(4)
    rows["begin"], rows["end"] = [0, 5, 20, 22], [10, 12, 30, 23]
    assert union(rows) == pytest.approx(22e-9) and union(rows[:0]) == 0


def test_names_are_escaped_for_page_and_terminal() -> None:
    found = hostile()
    text = page(found)
    assert text.count("<script") == 2 and "<img" not in text
    words = "\n".join(map(printable, summary(found)))
    assert "\x1b" not in words and "\u202e" not in words


def test_pages_are_whole_and_ask_for_nothing() -> None:
    nothing = find(Timeline({}, [], [], slices(0)))
    alone = find(merge(recorded(1, ring(1, 1, [[1.0]], good))))
    for found in (report(late=1), hostile(), nothing, alone):
        text = page(found)
        assert not re.search(r"url\((?!#)|https?://|@import", text)
        assert not re.search(r"<td[^>]*>\[", text), "a list of Python's"
        checker = Balanced()
        checker.feed(text)
        assert checker.open == [] and checker.pictures == checker.described
        assert len(checker.ids) == len(set(checker.ids))


class Balanced(html.parser.HTMLParser):
    """Are all tags closed, in order?"""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.pictures = self.described = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value for key, value in attrs if key == "id" and value]
        assert not {"src", "href", "style", "onload"} & {key for key, _ in attrs}
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)
        self.pictures += tag == "svg"
        self.described += tag == "desc"

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, (tag, self.open)


def large(each: int = 125_000) -> Timeline:
    """A million slices of eight ranks."""
    i, rank = np.repeat(np.arange(each), 8), np.tile(np.arange(8), each)
    rows = slices(8 * each)
    rows["begin"], rows["end"] = 2000 * i, 2000 * i + 1000
    rows["track"], rows["name"], rows["seq"] = 2 * rank + (i % 4 == 0), i % 40, i // 4
    tracks = [Track(r, name, False, name, "world") for r in range(8) for name in ("calls", "waits")]
    return Timeline({r: f"rank {r}" for r in range(8)}, tracks, [f"allreduce {k}" for k in range(40)], rows)


def test_a_million_slices_fit_into_a_megabyte() -> None:
    timeline = large()
    drawn = binned(timeline)
    assert abs(int(drawn.bins[0].astype(int).mean()) - 255 * 3 // 8) <= 2  # three quarters of the time, half of it
    assert drawn.exact.shape == (3000, 4)
    began = time.process_time()
    text = page(Findings(timeline, 1.0, [], [], [], *empty()))
    used = time.process_time() - began
    assert len(text.encode()) < 1_000_000 and used < 6


def empty() -> tuple[Any, Any]:
    few = find(Timeline({}, [], [], slices(0)))
    return few.blame, few.evidence


def test_bins_cover_what_slices_cover() -> None:
    rows = slices(2)
    rows["begin"], rows["end"], rows["track"] = [0, 750], [500, 1000], 0
    drawn = binned(Timeline({0: "a"}, [Track(0, "calls", False, "calls")], ["x"], rows))
    coarse = drawn.coarse(4)[0].tolist()
    assert coarse == [255, 255, 0, 255]


# ------------------------------------------------------------------------------------------------- in a real browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_chromium(scheme: str, chromium: Any, tmp_path: Path) -> None:
    """No request, no error, no finding of axe-core; the timeline moves by keys; names stay text."""
    from axe_playwright_python.sync_playwright import Axe

    for name, found in (("late", report(late=1)), ("hostile", hostile())):
        file = tmp_path / f"{name}.html"
        file.write_text(page(found))
        tab = chromium.new_page(color_scheme=scheme, viewport={"width": 1100, "height": 900}, bypass_csp=False)
        asked, wrong = [], []
        tab.on("request", lambda request, asked=asked: asked.append(request.url))
        tab.on("console", lambda said, wrong=wrong: wrong.append(said.text))
        tab.on("pageerror", lambda error, wrong=wrong: wrong.append(str(error)))
        tab.goto(file.as_uri())
        assert asked == [file.as_uri()] and wrong == [] and tab.title().startswith("hocket: 4 ranks")
        assert tab.locator("canvas").is_visible() and not tab.locator(".still").is_visible()
        blank = tab.evaluate(INK)
        assert blank > 1000
        canvas = tab.locator("canvas")
        canvas.focus()
        before = tab.evaluate(PICTURE)
        for key in ("ArrowUp", "ArrowRight", "n"):
            canvas.press(key)
        assert tab.evaluate(PICTURE) != before and "took" in tab.locator("#where").inner_text()
        canvas.press("Home")
        results = Axe().run(tab)
        assert results.violations_count == 0, json.dumps(results.response["violations"], indent=1)[:3000]
        tab.screenshot(path=str(tmp_path / f"{name}-{scheme}.png"), full_page=True)
        tab.close()


INK = """() => { const c = document.querySelector('canvas');
    const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
    let n = 0; for (let i = 3; i < d.length; i += 4) n += d[i] > 0; return n; }"""
PICTURE = "() => document.querySelector('canvas').toDataURL()"


@pytest.mark.browser
def test_without_script_the_page_is_whole(chromium: Any, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(page(report(late=1)))
    context = chromium.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto(file.as_uri())
    assert "Rank 1 made the others wait" in tab.inner_text(".said") and tab.locator(".still svg").is_visible()
    assert not tab.locator("canvas").is_visible()
    assert tab.locator("table").count() == 8
    context.close()


def test_on_a_phone_bars_have_their_values_and_words_stay_whole() -> None:
    text = page(report(late=1))
    pictures = re.findall(r"<svg height.*?</svg>", text)
    assert len(pictures) == 2, "bars are as wide as the window"
    for picture in pictures:
        assert re.findall(r">[^<]*rank \d[^<]*: [\d.]+ (?:s|ms|us)</text>", picture), picture
        parts = [float(part) for part in re.findall(r' x="([\d.]+)%"', picture)]
        assert parts and max(parts) <= 100
    assert "overflow-wrap: anywhere" not in re.findall(r"td:first-child[^}]*}", text)[0]


def test_the_slowest_link_is_first_and_one_that_carried_nothing_last() -> None:
    found = report(late=1)
    links = [dataclasses.replace(found.links[0], dest=9, nbytes=0, rate=0.0), *found.links]
    rows = re.findall(r'<th scope="row">(rank \d to \d)</th>', page(dataclasses.replace(found, links=links)))
    assert rows[-1].endswith("to 9") and len(rows) == len(links)


def test_sizes_have_three_digits() -> None:
    assert [human(n) for n in (8, 1023, 1024, 1800, 65536, 1 << 20, 150 * 1024)] == [
        "8 B", "1023 B", "1 KiB", "1.76 KiB", "64 KiB", "1 MiB", "150 KiB",
    ]  # fmt: skip
    assert [seconds(t) for t in (1.254, 13.23, 119.6, 0.31)] == ["1.25 s", "13.2 s", "120 s", "310 ms"]
