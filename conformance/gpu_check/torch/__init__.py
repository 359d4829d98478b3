"""What torch does with hocket on CUDA tensors: torch.distributed, and training."""
