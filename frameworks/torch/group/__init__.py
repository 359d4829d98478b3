"""From torch's name for a group to hocket's communicator, and its end.

    bootstrap.py      from torch's store to a communicator
    process_group.py  the process group
    hooks.py          torch's hooks of its calls
    shim.py           what torch finds where it asks the group for its backend
    backend.py        the same calls as one backend of several in a group
    identity.py       what both say of themselves, and how they end
    carrier.py        whose calls a group's are, seen from outside
    monitor.py        monitored_barrier, which torch keeps to Gloo
    functional.py     functional collectives, in groups made in Python
    dynamo.py         torch.compile does not look into these files
"""
