"""The ways in which ranks find, trust and hear each other: messages, never array bytes."""
