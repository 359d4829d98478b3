"""The latest events of ranks, in memory that others can read; and what is made of them."""
