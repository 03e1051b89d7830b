"""Files: sparse and dense weights, CSR, ONNX, and checkpoints of sharded models."""
