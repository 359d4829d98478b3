"""The control plane of a job whose members change: who is there, who comes, and who goes on."""
