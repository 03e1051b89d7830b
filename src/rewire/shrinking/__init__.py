"""Remove empty neurons and unused inputs, exactly: the same function with fewer channels.

One way: ``trace`` (the model as a graph of ATen operations) -> ``rules`` (what each operation does to channels) ->
``plan`` (which channels nobody needs, to a fixed point) -> ``cut`` (slice the parameters) -> ``shrink`` (verify).
"""
