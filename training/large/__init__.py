"""Which part of a model a rank has: a mesh of ranks, optimizers in shards, layers that are cut."""
