"""Fewer rounds, beside the loops of torchft and Flower."""
