"""What a server holds: replicas of shards, without I/O, and their snapshots."""
