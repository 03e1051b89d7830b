"""``rewire.pack``: a trained sparse model made fast for inference. Trace, fold and fuse, pack, lower, run."""
