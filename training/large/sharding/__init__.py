"""Optimizers whose state, gradients and parameters are cut among ranks: ZeRO, FSDP."""
