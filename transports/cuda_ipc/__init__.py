"""From GPU to GPU inside a host."""
