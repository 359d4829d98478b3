"""Random programs on real ranks; each rank knows what every result must be."""
