"""``rewire.pack``: a trained sparse model made fast for inference. Trace, fuse, lower, run."""
