"""What ranks run in test_training: what users build on torch.distributed, unmodified, on the hocket backend.

Each case compares numbers with one process that does the whole work, or with a formula.
"""
