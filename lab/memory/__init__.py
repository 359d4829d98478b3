"""The effect of this machine's memory on copies, without a transport."""
