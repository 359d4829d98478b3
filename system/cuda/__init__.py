"""The CUDA driver and compiler, opened when first asked for."""
