"""What the collectives mean, and the engine that runs them."""
