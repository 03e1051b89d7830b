"""Sparse layers, batch norm and pooling on batches, forward and backward, in HWCN layout."""
