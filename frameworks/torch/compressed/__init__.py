"""Gradients of DDP and FSDP2 with fewer bits: hooks that torch calls, and what they keep.

    hooks.py    `compress`, and torch's bf16_compress_hook
    buckets.py  DDP's buckets, averaged by a Compressor
    copies.py   a CUDA bucket in a stream beside the backward pass, where it is or as a copy in host memory
    rates.py    the learning rates that gradients will be multiplied by
    sharded.py  FSDP2's reduce-scatter and all-gather; ranks' own states in checkpoints
    states.py   what hocket's objects keep, with tensors for arrays
"""
