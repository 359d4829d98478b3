"""The measuring itself, and tables and pictures of it."""
