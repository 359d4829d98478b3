"""The programs of the ranks of test_training: what users build on torch.distributed, unmodified, on the hocket backend.

Each case compares numbers with one process that does the whole work, or with a formula.
"""
