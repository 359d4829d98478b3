"""The methods by name, and which of them is fastest here."""
