"""`hocket doctor`: what works on this machine, and what is slow or different in a job."""
