"""The members of a communicator, their queues, and the transport to each."""
