"""Remove empty neurons and unused inputs exactly: the same function with fewer channels.

In this order: ``graph`` (trace the model to a graph of ATen operations), ``rules`` and ``layers`` (what each operation
does to channels and to constants), ``plan`` (which channels nothing needs), ``cut`` (slice the parameters), ``verify``
(compare the outputs before and after), ``report`` (what was removed). ``shrink`` runs them all.
"""
