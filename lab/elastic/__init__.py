"""The cost of a renewal, a newcomer and steady change of members."""
