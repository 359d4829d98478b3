"""The cost of fewer bits, and whether they pay: one program for each table of docs/compression.md."""
