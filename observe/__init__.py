"""See what a job did: traces of all ranks on one clock, who made whom wait, and a page that says so in words.

    clocks.py       the offset between two clocks, with a bound that no delay can break
    pinging.py      all clocks of a communicator, by messages
    timeline.py     what a trace holds: slices, counts, tracks
    writing.py      as a file: perfetto.py or chrome.py, packed by packing.py
    reading.py      and back; nothing in a file is believed
"""
