"""Jobs that outlive their ranks: the next generation, newcomers; and communicators of two that fail alone."""
