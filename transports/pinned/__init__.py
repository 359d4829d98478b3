"""From GPU to GPU through pinned host memory."""
