"""A checkpoint in shards is written again for another number of ranks."""
