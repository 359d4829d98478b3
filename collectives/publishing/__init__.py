"""Arrays of one job, version by version, for readers of others."""
