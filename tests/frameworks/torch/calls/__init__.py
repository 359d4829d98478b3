"""The programs of the ranks of test_calls: each call on hocket and on Gloo, with the same input; the results must be
equal.

Small whole numbers, so that the order of additions does not matter.
"""
