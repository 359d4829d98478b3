"""The members of a job whose ranks are lost, are late and come, and where they go on."""
