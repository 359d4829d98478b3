"""Random programs on real ranks, each rank of which knows what every result must be."""
