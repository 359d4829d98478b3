"""See what a job did: traces of all ranks on one clock, who made whom wait, and a page that says so in words.

    clocks.py       the offset between two clocks, with a bound that no delay can break
    pinging.py      all clocks of a communicator, by messages
    events.py       what one engine recorded, as slices
    merging.py      all ranks' records become one timeline, on one clock
    collecting.py   what ranks left in a folder; session.py: `comm.trace`, over messages
    timeline.py     what a trace holds: slices, counts, tracks
    files/          traces as files, and back: Perfetto's format, Chrome's JSON; nothing in a file is believed
    connections.py  what the kernel said of TCP connections
    evidence.py     each wait, the message that ended it, and when the peer began to do its part
    attribution.py  every second of waiting goes to a late rank, a slow link, or to what no one can help
    findings.py     the numbers of a report; sentences.py: its first lines; page/: as HTML
    metrics/        what ranks that run export: Prometheus, OpenTelemetry, a dashboard for Grafana
    layers.py       communication by the marks of the program
    cables.py       what lies between two hosts
    replay.py       the run again, by the simulator, with one thing changed
"""
