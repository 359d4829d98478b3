"""The frequency of rounds: each trains alone for a while, then they average what they learned."""
