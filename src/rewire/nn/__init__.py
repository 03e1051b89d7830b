"""The modules that the packed store puts in place of torch's: sparse layers, and their neighbours in HWCN layout."""
