"""Ranks that are killed, stopped and paused at random moments: what the others must say, and when."""
