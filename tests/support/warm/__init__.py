"""Python processes that start warm: forked from one that has imported NumPy, hocket and perhaps torch, instead of executed.

A third of a second for each process, two with torch, six with DDP is what this saves; they are processes like others.
"""
