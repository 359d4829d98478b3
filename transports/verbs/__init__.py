"""RDMA."""
