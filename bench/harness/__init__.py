"""How things are measured, and tables and pictures of it."""
