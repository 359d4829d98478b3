"""What this machine's memory does to copies, without a transport."""
