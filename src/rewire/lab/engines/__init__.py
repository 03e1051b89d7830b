"""Ways to carry out many runs: worker processes on this machine, or a Ray cluster."""
