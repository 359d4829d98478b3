"""A check whether hocket works on this machine's GPU, and how fast."""
