"""Random programs, and random deaths."""
