"""The ranks of a job as a grid with named axes, each of which is a communicator."""
