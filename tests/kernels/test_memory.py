"""Memory that is used again: blocks come back when their last tensor is gone, and no more is kept than was in use."""

import torch

from rewire.kernels.memory import SHARE, SLACK, SMALLEST, Pool, empty_map

COUNT = SMALLEST + 3


def test_a_block_comes_back_when_its_last_tensor_is_gone():
    pool = Pool()
    first = pool.empty(COUNT)
    place, view = first.data_ptr(), first[5:]
    assert pool.empty(COUNT).data_ptr() != place
    del first
    assert pool.empty(COUNT).data_ptr() != place  # the view still needs it
    del view
    kept = [pool.empty(COUNT) for _ in range(2)]
    assert place in [one.data_ptr() for one in kept]


def test_blocks_are_aligned_and_small_ones_are_left_to_torch():
    pool = Pool()
    assert all(pool.empty(COUNT + extra).data_ptr() % 64 == 0 for extra in range(5))
    small = pool.empty(SMALLEST - 1)
    assert len(small) == SMALLEST - 1
    assert pool.used == 0


def test_no_more_is_kept_than_a_share_of_what_was_in_use():
    pool = Pool()
    for extra in range(200):  # every size is another one: nothing can be used again
        pool.empty(COUNT * 4 + 1024 * extra)
        assert pool.used == 0
        assert pool.kept <= SHARE * pool.most + SLACK
    assert pool.kept > SLACK // 2
    pool.release()
    assert pool.kept == 0


def test_a_tensor_outlives_the_pool():
    pool = Pool()
    tensor = pool.empty(COUNT).fill_(3.0)
    del pool
    assert bool((tensor == 3).all())


def test_maps_of_other_types_come_from_torch():
    assert empty_map(torch.empty(0, dtype=torch.float64), 64, 8, 32, 32).dtype == torch.float64
    assert empty_map(torch.empty(0, device="meta"), 64, 8, 32, 32).device.type == "meta"
    assert empty_map(torch.empty(0), 64, 8, 32, 32).permute(2, 3, 1, 0).is_contiguous()
