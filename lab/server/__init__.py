"""What a parameter server costs: one program for each table of docs/server.md."""
