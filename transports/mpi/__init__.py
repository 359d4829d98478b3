"""Messages and collectives of an MPI library."""
