"""A worker's end: what it pushes and pulls, and what goes out again when a server is lost."""
