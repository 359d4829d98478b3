"""Horovod, oneCCL, perftest and pyverbs under the stopwatch."""
