"""What this machine's memory does, without the rest of the library."""
