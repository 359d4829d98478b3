"""Python programs that start warm: forked from a process that has imported NumPy, hocket and perhaps torch.

A third of a second for each process, two with torch, six with DDP is what this saves; they are processes like others.
"""
