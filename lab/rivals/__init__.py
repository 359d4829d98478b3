"""Horovod, perftest and pyverbs under the stopwatch."""
