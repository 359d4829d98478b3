"""From a process to a rank: launchers, the environment, `init`, the world, `local_world`."""
