"""Who takes part in a job whose ranks are lost, are late and come, and where they go on."""
