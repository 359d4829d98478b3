"""Users hold these: the `Communicator`, its members, its calls, its end."""
