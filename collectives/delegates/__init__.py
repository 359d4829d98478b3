"""Another library carries out the whole collective."""
