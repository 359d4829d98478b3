"""Each rank has some experts, and tokens travel to those that their gates have chosen."""
