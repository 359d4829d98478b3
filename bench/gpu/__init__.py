"""The check of a machine's GPU."""
