"""An error reaches all ranks, in words."""
