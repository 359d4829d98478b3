"""Which algorithm and which codec for which call: the choice, and what it stands on."""
