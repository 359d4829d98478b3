"""Plans run, without the GIL."""
