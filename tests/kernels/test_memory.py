"""The memory pool: blocks are reused when their last tensor is gone, the pool stays small, and a fork is harmless."""

import torch

from rewire.kernels.memory import MIN_POOLED, SHARE, SLACK, Pool, empty_hwcn

COUNT = MIN_POOLED + 3


def test_a_block_comes_back_when_its_last_tensor_is_gone():
    pool = Pool()
    first = pool.empty(COUNT)
    address, view = first.data_ptr(), first[5:]
    assert pool.empty(COUNT).data_ptr() != address
    del first
    assert pool.empty(COUNT).data_ptr() != address  # the view still needs it
    del view
    kept = [pool.empty(COUNT) for _ in range(2)]
    assert address in [one.data_ptr() for one in kept]


def test_blocks_are_aligned_and_small_ones_are_left_to_torch():
    pool = Pool()
    assert all(pool.empty(COUNT + extra).data_ptr() % 64 == 0 for extra in range(5))
    small = pool.empty(MIN_POOLED - 1)
    assert len(small) == MIN_POOLED - 1
    assert pool.used_bytes == 0


def test_the_pool_holds_no_more_than_a_share_of_what_was_in_use():
    pool = Pool()
    for extra in range(200):  # every size differs: no block can be reused
        pool.empty(COUNT * 4 + 1024 * extra)
        assert pool.used_bytes == 0
        assert pool.free_bytes <= SHARE * pool.peak_bytes + SLACK
    assert pool.free_bytes > SLACK // 2
    pool.release()
    assert pool.free_bytes == 0


def test_a_tensor_outlives_the_pool():
    pool = Pool()
    tensor = pool.empty(COUNT).fill_(3.0)
    del pool
    assert bool((tensor == 3).all())


def test_tensors_of_other_types_come_from_torch():
    assert empty_hwcn(torch.empty(0, dtype=torch.float64), 64, 8, 32, 32).dtype == torch.float64
    assert empty_hwcn(torch.empty(0, device="meta"), 64, 8, 32, 32).device.type == "meta"
    assert empty_hwcn(torch.empty(0), 64, 8, 32, 32).permute(2, 3, 1, 0).is_contiguous()
