"""Gloo, the MPIs, the machine and hocket under the stopwatch."""
