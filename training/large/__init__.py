"""Which part of a model a rank has: in rooms, and layers that are cut, and sufficient factors."""
