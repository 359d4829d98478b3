"""The meaning of the collectives, and the engine that runs them."""
