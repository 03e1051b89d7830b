"""Inference on one input: a whole network as a program of steps that runs in one native call, planar layout."""
