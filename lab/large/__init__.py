"""What models that are larger than a rank send, and what it costs: one program for each table of docs/large.md."""
