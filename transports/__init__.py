"""Ways of bytes to a peer: one folder for each way; channel.h and base.py say what all have in common."""
