"""Users hold these: the `Communicator`, its calls, its planner, its end."""
