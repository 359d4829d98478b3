"""Short answers for a shell: what an algorithm does, what a job uses, which words may come next."""
