"""Read-only questions about a sparse network: densities, empty units, multiply-adds, overlap, cost on several ranks.

Weights are counted by topology, never by value: an active weight that is zero counts.
"""
