"""How ranks train together: when gradients are sent, how often ranks talk, who takes part.

Stands on hocket's public calls and on `hocket.compression`; knows NumPy, and no framework.  Each noun is one class, and
each method is a rule for it, in a file of its own.  Users import the names from here.

    overlap/    when: gradients travel while the computation goes on
"""

from hocket.training.overlap.scheduler import Report, Scheduler

__all__ = ["Report", "Scheduler"]
