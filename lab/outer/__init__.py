"""What talking less often costs, and whether it pays: one program for each table of docs/less.md."""
