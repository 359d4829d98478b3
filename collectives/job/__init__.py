"""From a process to a rank: launchers, the environment, how ranks meet, and the world, which has the transports."""
