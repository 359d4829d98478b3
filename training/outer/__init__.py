"""How often ranks talk: each trains alone for a while, then they average what they learned."""
