"""Horovod's interface on hocket: `import hocket.horovod.torch as hvd`, and nothing else changes.  For torch:

Ranks submit tensors by name, in any order.  Rank 0 of a process set learns what each rank has submitted, and tells all
ranks in which order to carry it out, so their collectives meet: `hocket.training.agreeing`.  Around it:

    basics.py         ranks and sizes, and the ops
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
    tensorflow/       the interface for TensorFlow 2 and tf.keras, whose calls keep the program's order: no names
    keras.py          the same under Horovod's other name
    running.py        `run`: a function on several ranks of this host
"""

from hocket.horovod.running import run

__all__ = ["run"]
