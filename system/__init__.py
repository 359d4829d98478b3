"""The operating system and drivers; knows no rank."""
