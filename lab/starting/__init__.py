"""How a job starts: how long until its ranks have met, and on which cores they are."""
