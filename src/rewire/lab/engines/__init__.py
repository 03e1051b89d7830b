"""How many runs are carried out: on this machine's processes, or elsewhere."""
