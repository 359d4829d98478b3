"""Starting: `init`, `local_world`, and the default communicator."""
