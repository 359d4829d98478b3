"""What ranks did last, in memory that others can read; and what is made of it."""
