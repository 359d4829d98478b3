"""Horovod's interface on hocket: `import hocket.horovod.torch as hvd`, and nothing else changes.

Ranks submit tensors by name, in any order.  Rank 0 of a process set learns what each rank has submitted, and tells all
ranks in which order to carry it out, so their collectives meet: `hocket.training.agreeing`.  Around it:

    job.py            init, shutdown, who and where a rank is
    process_sets.py   sets of ranks
    settings.py       HOROVOD_ variables
    stall.py          says which ranks hold up which tensors
    plain.py          Python values as JSON, instead of pickle
    timeline.py       a trace of all that, for a browser
    exceptions.py     errors, of classes that Horovod's users catch
    elastic.py        training that goes on without the ranks that were lost
    meeting.py        how those that are left meet again

    torch/            the interface for torch; only there is torch imported
"""
