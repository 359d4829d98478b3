"""Plans run; all but the shortest without the GIL."""
