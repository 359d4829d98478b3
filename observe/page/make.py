"""The page.  Names from a trace stand in it as text alone: all are escaped, and a policy forbids scripts but ours."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from math import inf

from hocket.arguments import human
from hocket.observe.findings import Findings, recurrence
from hocket.observe.layers import layers
from hocket.observe.page.binned import GROUPS, Binned, binned
from hocket.observe.page.pictures import Bar, bars, matrix, overview
from hocket.observe.sentences import name, rate, seconds, share, summary

NOTHING_ELSE = "base-uri 'none'; form-action 'none'"
MOST_ROWS = 100
"""Rows of a table: the largest."""
MOST_IN_PICTURE = 64
"""Ranks."""


def page(findings: Findings) -> str:
    """The whole page, as text; below 1 MB.  Cost: 1 us a slice."""
    style, script = (files("hocket.observe.page").joinpath(each).read_text() for each in ("style.css", "script.js"))
    policy = f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; {NOTHING_ELSE}"
    drawn = binned(findings.timeline)
    data = json.dumps(drawn.data(), separators=(",", ":")).replace("<", "\\u003c")
    title = f"hocket: {len(findings.ranks)} ranks, {seconds(findings.seconds)}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<div class="said">{"".join(f"<p>{escape(line)}</p>" for line in summary(findings))}</div>',
        _waits(findings), _ranks(findings), _layers(findings),
        _factors(findings), _pairs(findings), _links(findings), _calls(findings), _timeline(drawn),
        _clocks(findings),
    ]  # fmt: skip
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>{escape(title)}</title><style>{style}</style></head>\n<body><main>\n{chr(10).join(parts)}\n</main>\n"
        f'<script type="application/json" id="data">{data}</script>\n<script>{script}</script></body></html>\n'
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[object]], text: Sequence[int] = ()) -> str:
    """The first column, and those in `text`, are words; the others numbers."""
    given = list(rows)
    more = f" The largest {MOST_ROWS} of {len(given)}." if len(given) > MOST_ROWS else ""
    kinds = ['class="text"' if i in text else "" for i in range(len(heads))]
    head = "".join(f'<th scope="col" {kind}>{escape(each)}</th>' for each, kind in zip(heads, kinds, strict=True))
    body = ""
    for row in given[:MOST_ROWS]:
        first, *others = (escape(str(each)) for each in row)
        cells = "".join(f"<td {kind}>{each}</td>" for each, kind in zip(others, kinds[1:], strict=True))
        body += f'<tr><th scope="row">{first}</th>{cells}</tr>'
    label = escape(caption, quote=True)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table><caption>{label}{more}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def figure(picture: str, what: str) -> str:
    """With its legend.  A narrow window scrolls it, so that its words stay legible."""
    label = escape(what, quote=True)
    return (
        f'<figure><div class="scroll" tabindex="0" role="region" aria-label="{label}">{picture}</div>'
        f"<figcaption>{label}</figcaption></figure>"
    )


def _waits(findings: Findings) -> str:
    kinds = {"late": "waits", "core": "other", "work": "kernels", "link": "receives", "cable": "receives"}
    causes = findings.blame.worst("late", "core", "work", "link", "cable", "transfer", "unsure")
    if not causes:
        return ""
    rows = [Bar(name(cause), [(kinds.get(str(cause[0]), "calls"), part)]) for cause, part in causes[:12]]
    what = "Seconds of waiting of all ranks, by cause. The table has the numbers."
    picture = bars("why", "Why ranks waited", what, rows)
    listed = [
        (name(cause), seconds(part), share(part, findings.blame.total), recurrence(findings.blame, cause))
        for cause, part in causes
    ]
    return f"<h2>Why ranks waited</h2>{figure(picture, what)}" + table(
        "Waiting of all ranks, by cause; in how many calls it recurs", ["cause", "seconds", "share", "calls"], listed
    )


def _ranks(findings: Findings) -> str:
    rows = [
        Bar(f"rank {r.rank}", [("calls", r.computing), ("kernels", r.moving), ("waits", r.waiting)])
        for r in findings.ranks[:MOST_IN_PICTURE]
    ]
    what = "For each rank: time outside of calls, then at work inside of calls, then, striped, waiting."
    listed = [
        (f"rank {r.rank}", r.host, r.calls, seconds(r.computing), seconds(r.moving), seconds(r.waiting),
         seconds(r.kernels), seconds(r.inside - r.asynchronous), seconds(r.asynchronous))
        for r in findings.ranks
    ]  # fmt: skip
    heads = ["rank", "host", "calls", "outside", "working inside", "waiting", "arithmetic", "exposed", "asynchronous"]
    note = (
        '<p class="soft">Exposed: the program stood still in these calls. Asynchronous: it went on, and the calls are'
        " hidden as far as it did not wait for them later.</p>"
    )
    return (
        f"<h2>Where the time went</h2>{figure(bars('time', 'Where the time went', what, rows), what)}{note}"
        + table("Seconds of each rank", heads, listed, text=[1])
    )


def _layers(findings: Findings) -> str:
    rows = [
        (each.name, each.calls, seconds(each.exposed), seconds(each.asynchronous), seconds(each.waiting))
        for each in layers(findings.timeline)
    ]
    if not rows:
        return ""
    heads = ["after the mark", "calls", "exposed", "asynchronous", "waiting"]
    what = "Calls that began after each mark, all ranks together"
    return f"<h2>By the program's marks</h2>{table(what, heads, rows)}"


def _factors(findings: Findings) -> str:
    computing = sum(rank.computing for rank in findings.ranks)
    alone = findings.rounds * len(findings.ranks) / computing if computing else 0.0
    listed = [
        ("one device's speed: calls a second of its own computing", f"{alone:.3g}"),
        ("number of devices", len(findings.ranks)),
        ("efficiency of scaling: the part of the time that they compute", f"{findings.efficiency:.1%}"),
        ("their product: calls a second of all ranks", f"{alone * len(findings.ranks) * findings.efficiency:.3g}"),
    ]
    return "<h2>Three factors</h2>" + table("What the speed of the whole is made of", ["factor", "value"], listed)


def _pairs(findings: Findings) -> str:
    pairs, ranks = findings.blame.pairs, [rank.rank for rank in findings.ranks][:MOST_IN_PICTURE]
    if not pairs:
        return ""
    what = "A square for each pair of ranks: the larger, the longer the row's rank waited for the column's."
    listed = [(f"rank {a}", f"rank {b}", seconds(s)) for (a, b), s in sorted(pairs.items(), key=lambda kv: -kv[1])]
    picture = matrix("pairs", "Who waited for whom", what, ranks, pairs)
    return f"<h2>Who waited for whom</h2>{figure(picture, what)}" + table(
        "Before it is asked why", ["waited", "for", "seconds"], listed, text=[1]
    )


def _links(findings: Findings) -> str:
    if not findings.links:
        return ""
    rows = [
        (f"rank {link.source} to {link.dest}", link.messages, human(link.nbytes), rate(link.rate), rate(link.usual),
         seconds(findings.blame.seconds.get(("link", link.source, link.dest), 0.0)),
         recurrence(findings.blame, ("link", link.source, link.dest)), seconds(link.tcp.rtt) if link.tcp.rtt else "",
         link.tcp.again, share(link.tcp.receiver, link.tcp.busy) if link.tcp.busy else "")
        for link in sorted(findings.links, key=lambda link: link.rate or inf)
    ]  # fmt: skip
    heads = ["link", "messages seen whole", "bytes", "carried", "usual", "waited for it", "calls", "TCP: round trip",
             "packets sent again", "receiver's buffer full"]
    return "<h2>Links</h2>" + table("The slowest first, by its largest messages", heads, rows)


def _calls(findings: Findings) -> str:
    rows = [
        (c.name, c.algorithm, c.transports, c.site, c.count, human(c.nbytes), human(c.nbytes * c.count),
         seconds(c.seconds))
        for c in findings.calls
    ]  # fmt: skip
    heads = ["call", "algorithm", "over", "first made at", "count", "bytes each", "bytes in all", "seconds"]
    return "<h2>Calls</h2>" + table("All ranks together", heads, rows, text=[1, 2, 3])


def _timeline(drawn: Binned) -> str:
    coarse = drawn.coarse(min(150, drawn.bins.shape[1]))
    shown = [(words, GROUPS[group], coarse[i].tolist()) for i, (words, group) in enumerate(drawn.rows[:48])]
    still = overview("still", "Timeline", "Each row: what a rank did, from the left to the right.", shown)
    listed = []
    for row, begin, end, number in drawn.exact[:20].tolist():
        times = seconds(begin / 1e9), seconds((end - begin) / 1e9)
        listed.append((drawn.rows[int(row)][0], drawn.names[int(number)], *times))
    keys = "Arrow keys move and zoom, + and - zoom, Home shows all, n and p go from slice to slice; so does a click."
    note = f" {drawn.left_out} more rows are left out." if drawn.left_out else ""
    return (
        '<h2>Timeline</h2><figure id="timeline">'
        f'<div class="still scroll" tabindex="0" role="region" aria-label="Timeline">{still}</div>'
        f'<canvas tabindex="0" role="application" aria-label="Timeline. {keys}"></canvas>'
        f'<figcaption>{keys}{note}</figcaption></figure><p id="where" role="status"></p>'
        + table("The longest slices", ["rank", "what", "at", "took"], listed, text=[1])
    )


CLOCKS = ("host", "pid", "clock_error_us", "drift_ppm", "lost")


def _range(fact: object) -> object:
    """A clock's drift is known from here to there."""
    return " to ".join(dict.fromkeys(map(str, fact))) if isinstance(fact, list) else fact


def _clocks(findings: Findings) -> str:
    facts = findings.timeline.about.get("ranks")
    rows = []
    for rank, own in sorted(facts.items()) if isinstance(facts, dict) else ():
        if isinstance(own, dict):
            rows.append([f"rank {rank}", *(_range(own.get(key)) for key in CLOCKS)])
    heads = ["rank", "host", "process", "clock wrong by at most (us)", "drift (ppm)", "records lost"]
    return "<h2>Clocks and records</h2>" + table("On the clock of the first rank", heads, rows, text=[1])
