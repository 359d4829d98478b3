"""The ranks of a job as a grid with named axes; each axis is a communicator."""
