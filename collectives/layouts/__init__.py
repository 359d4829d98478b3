"""Arrays in boxes, by rank: how they move from one layout to another."""
