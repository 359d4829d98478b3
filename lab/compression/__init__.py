"""What fewer bits cost, and whether they pay: one program for each table of docs/compression.md."""
