"""``Rewirer``: keeps a model sparse while its optimizer trains it. Built by ``rewire.sparsify``."""
