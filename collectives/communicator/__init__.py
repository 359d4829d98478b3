"""What users hold: the `Communicator`, its members, its calls, its end."""
