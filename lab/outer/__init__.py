"""The cost of talking less often, and whether it pays: one program for each table of docs/less.md."""
