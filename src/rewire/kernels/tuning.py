"""Constants of the Python side that were chosen by measurement; those of the native code are in native/tuning.hpp.

Measure with ``python -m benchmarks.packed`` (networks), ``python -m benchmarks.im2col`` (layers) and ``python -m
benchmarks.kernel_times`` (where the time goes).
"""

# Above these densities a convolution is computed dense, zeros included: (forward, backward). The sparse backward kernel
# loads every gradient once for two products, so skipping zeros pays for longer there.
DENSE_ABOVE = (0.45, 0.7)

# Column blocks: input channels times taps of one block, so that its part of the activation stays in the L2 cache.
# Sparser layers read fewer of them, so their blocks are larger: ``PER_DENSITY / density``, within these limits.
COLUMNS_PER_DENSITY, FEWEST_COLUMNS, MOST_COLUMNS = 50, 400, 1536

# Multiply-adds of a one-sample program from which on a second thread saves more than it costs.
SAMPLE_THREADS_PRODUCTS = 1 << 16

# Batches up to this size may run sample after sample, as one-sample programs, or padded with zeros to a multiple of
# PADDED_BATCH, the lanes of the widest vector; larger ones fill the vectors of the batch kernels.
MAX_SAMPLES, PADDED_BATCH = 31, 16

# Vectors of a batch (N, features) from which on a linear layer reads them token by token, as it reads sequences.
# Smaller batches are transposed once and stay batch-innermost from layer to layer.
MIN_TOKENS = 1024
