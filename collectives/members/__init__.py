"""The members of a communicator, and their queues."""
