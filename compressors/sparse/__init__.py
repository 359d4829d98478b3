"""A few of the elements: sums of sparse vectors and tensors, and the methods that send them."""
