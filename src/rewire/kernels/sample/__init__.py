"""One input without gradients: a whole network as a program that runs in one native call."""
