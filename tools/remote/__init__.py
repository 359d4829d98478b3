"""Ranks on other hosts: an agent there, started by ssh, and the launcher's end of the connection to it."""
