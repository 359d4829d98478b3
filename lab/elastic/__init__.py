"""What a renewal, a newcomer and steady change of members cost."""
