"""The start of a job: how long until its ranks have met, and on which cores they are."""
