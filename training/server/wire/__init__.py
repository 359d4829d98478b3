"""What workers and servers say to each other, and the links on which they say it."""
