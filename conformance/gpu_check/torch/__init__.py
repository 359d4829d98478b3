"""torch's use of hocket on CUDA tensors: torch.distributed, and training."""
