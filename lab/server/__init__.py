"""The cost of a parameter server: one program for each table of docs/server.md."""
