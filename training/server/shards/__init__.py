"""The contents of a server: replicas of shards, without I/O, and their snapshots."""
