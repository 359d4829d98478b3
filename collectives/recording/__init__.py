"""What this process did last, in memory that another process can read; and what is made of it."""
