import pytest

from rewire import ggr, gmp
from rewire.parts import Alternating, Constant, Cosine, Cubic, Linear, Never, Periodic, Sigmoid, Stepwise


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


def test_alternating_phases_against_a_drawn_timeline():
    def timeline(every, until, steps):
        curve = Alternating(1.0, 0.1, every=every, until=until)
        return "".join("#" if curve(step) == 1.0 else "." for step in range(steps))

    assert timeline(3, 15, 20) == "###...###...###....."  # five rewirings: sparse, dense, sparse, dense, sparse
    assert timeline(3, 12, 17) == "######...###....."  # four: the first would be dense again, so nothing happens
    assert timeline(4, 4, 7) == "####..."
    assert Alternating(1.0, 0.1, every=3, until=15).ends() == (1.0, 0.1)
    with pytest.raises(ValueError, match="until=16 must be a multiple of every=3"):
        Alternating(1.0, 0.1, every=3, until=16)
    with pytest.raises(ValueError, match="every, the length of a phase, must be at least one step, not 0"):
        Alternating(1.0, 0.1, every=0, until=6)
    with pytest.raises(ValueError, match="until must be a whole number of optimizer steps, .* not None"):
        Alternating(1.0, 0.1, every=3, until=None)
    with pytest.raises(ValueError, match=r"low=0.5 must not exceed high=0.1"):
        Alternating(0.1, 0.5, every=3, until=15)


def test_a_sigmoid_is_symmetric_and_exact_at_its_ends():
    curve = Sigmoid(0.5, 0.05, begin=10, until=50)
    assert (curve(0), curve(10), curve(50), curve(99)) == (0.5, 0.5, 0.05, 0.05)
    assert curve(30) == pytest.approx(0.275)
    assert curve(20) - 0.275 == pytest.approx(0.275 - curve(40))
    assert all(curve(step) >= curve(step + 1) for step in range(60))
    for steepness in (0, float("inf")):
        with pytest.raises(ValueError, match="steepness of a sigmoid must be positive and finite, not"):
            Sigmoid(0.5, 0.05, begin=10, until=50, steepness=steepness)
    jump = Sigmoid(0.5, 0.1, begin=0, until=10, steepness=1e4)  # exp(5000) is no number
    assert [jump(step) for step in (1, 4, 6, 9)] == pytest.approx([0.5, 0.5, 0.1, 0.1])


@pytest.mark.parametrize("curve", [Linear, Cosine, Cubic, Sigmoid])
def test_a_curve_that_ends_where_it_begins_jumps(curve):
    for until in (5, 3):
        jump = curve(1.0, 0.1, begin=5, until=until)
        assert [jump(step) for step in (0, 5, 6, 99)] == pytest.approx([1.0, 1.0, 0.1, 0.1])
    with pytest.raises(ValueError, match="until must be a whole number of optimizer steps, .* not None"):
        curve(1.0, 0.1, begin=5, until=None)


def test_a_stepwise_curve():
    curve = Stepwise((0.1, 0.3, 0.2), at=(5, 9))
    assert [curve(step) for step in (0, 4, 5, 8, 9, 100)] == [0.1, 0.1, 0.3, 0.3, 0.2, 0.2]
    assert (curve.ends(), curve.bounds(), curve.falls) == ((0.1, 0.2), (0.1, 0.3), True)
    assert not Stepwise((0.1, 0.3), at=(5,)).falls
    with pytest.raises(ValueError, match="2 steps divide 3 values, not 2"):
        Stepwise((0.1, 0.2), at=(1, 2))
    with pytest.raises(ValueError, match=r"must be in order, not \(3, 1\)"):
        Stepwise((0.1, 0.2, 0.3), at=(3, 1))
    with pytest.raises(ValueError, match="several values and the steps between them, not .*at=5"):
        Stepwise((0.1, 0.2), at=5)
    with pytest.raises(ValueError, match="at must be a whole number of optimizer steps, .* not 2.5"):
        Stepwise((0.1, 0.2), at=(2.5,))
