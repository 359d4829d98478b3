"""See what a job did: traces of all ranks on one clock, who made whom wait, and a page that says so in words.

    clocks.py       the offset between two clocks, with a bound that no delay can break
    pinging.py      all clocks of a communicator, by messages
"""
