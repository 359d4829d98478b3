"""When gradients are sent: behind the computation, the most urgent first, in an order that needs no coordinator.

    scheduler.py     `Scheduler`: what users hold
    declared.py      programs that declare their tensors: the order needs no message
    agreed.py        programs that declare none: rank 0 hears what is ready, and says what is next
    orders.py        which tensors are the most urgent
    dealing.py       which tensor travels on which lane, in which units
    gradient.py      the state of one step
    carrier.py       what carries the units of one lane
    settings.py      what was asked for, on all ranks alike
    record.py        what a step looked like
    tuning.py        `tune`: which lanes, slices and buckets are fast
    delayed.py       averages that come one step late
    arrays.py        arrays of floats, NumPy's or torch's
"""
