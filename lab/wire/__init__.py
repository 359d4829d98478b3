"""Long links between two hosts that are network namespaces: a delay, a rate, losses; and who is how fast over them."""
