import pytest

from rewire import ggr, gmp
from rewire.parts import Constant, Cosine, Cubic, Linear, Never, Periodic


def test_the_papers_schedule():
    # 391 steps an epoch, 200 epochs: from the beginning of epoch 1 at every epoch, 10 % falling to 0 at epoch 100.
    schedule = ggr(density=0.03, every=391, until=39_100).schedule
    assert schedule(0) is None
    assert schedule(390) is None
    assert schedule(391) == pytest.approx(0.1)
    assert schedule(392) is None
    assert schedule(391 * 50) == pytest.approx(0.05, abs=0.001)
    assert schedule(39_100) == pytest.approx(0.0)
    assert schedule(39_100 + 391) is None


def test_curves_by_hand():
    assert [Linear(1.0, 0.0, begin=1, until=5)(s) for s in (0, 1, 2, 3, 5, 9)] == [1.0, 1.0, 0.75, 0.5, 0.0, 0.0]
    assert [Cubic(1.0, 0.0, begin=0, until=4)(s) for s in (0, 1, 2, 4)] == [1.0, 0.421875, 0.125, 0.0]
    assert Cosine(0.4, 0.2, begin=0, until=2)(1) == pytest.approx(0.3)
    assert Constant(0.3)(17) == 0.3
    assert Never()(1) is None


def test_a_falling_density_arrives_at_the_last_rewiring():
    method = gmp(density=0.1, every=10, until=57)
    assert method.schedule(50) is not None
    assert method.schedule(57) is None
    assert method.density(50) == pytest.approx(0.1)
    assert method.density(0) == 1.0


def test_for_ever():
    schedule = Periodic(every=3, until=None, fraction=Constant(0.2))
    assert schedule(3_000_000) == 0.2


@pytest.mark.parametrize("every", [0, -1, 1.5, "2", None, True])
def test_every_must_be_a_positive_whole_number(every):
    with pytest.raises(ValueError, match="every must be a whole number"):
        Periodic(every=every, until=10, fraction=Constant(0.1))


def test_a_schedule_that_would_never_fire_is_refused():
    with pytest.raises(ValueError, match="until=5 is before the first rewiring, at every=10"):
        ggr(density=0.1, every=10, until=5)


def test_a_cosine_needs_an_end():
    with pytest.raises(ValueError, match="until must be a whole number of optimizer steps, .* not None"):
        ggr(density=0.1, every=10, until=None)


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan")])
def test_the_fraction_must_be_a_share(fraction):
    with pytest.raises(ValueError, match="fraction of weights to move"):
        Periodic(every=1, until=10, fraction=Constant(fraction))
