"""Plans, the keyed permutation and the draws: exactness for every size, and statistics with fixed seeds."""

import itertools
import math
import time

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings

from ddlp.data.sampling import ListedPlan, Plan, draws, listed, permute, sample_seed
from ddlp.errors import UsageError

Z = 4.5  # standard deviations; a right generator fails one test in 300 000


def plan(samples: int = 1000, batch_size: int = 32, **changes: object) -> Plan:
    settings = {"drop_last": False, "shuffle": True, "seed": 7, "epoch": 0, **changes}
    return Plan(samples, batch_size, **settings)  # type: ignore[arg-type]


def all_ids(one: Plan | ListedPlan) -> np.ndarray:
    return np.concatenate([np.empty(0, np.int64), *(one.ids(index) for index in range(len(one)))])


def order(n: int, seed: int = 7, epoch: int = 0) -> np.ndarray:
    """A whole epoch's order, as one batch."""
    return plan(n, n, seed=seed, epoch=epoch).ids(0)


def assert_uniform(counts: np.ndarray) -> None:
    """Chi-square, with Wilson and Hilferty's normal approximation."""
    freedom = counts.size - 1
    expected = counts.sum() / counts.size
    statistic = ((counts - expected) ** 2 / expected).sum()
    spread = 2 / (9 * freedom)
    z = ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    assert abs(z) < Z, f"chi-square {statistic:.0f} for {freedom} degrees of freedom (z = {z:.1f})"


def assert_uncorrelated(x: np.ndarray, y: np.ndarray) -> None:
    z = np.corrcoef(x.ravel(), y.ravel())[0, 1] * math.sqrt(x.size)
    assert abs(z) < Z, f"correlation of z = {z:.1f}"


def assert_continuous_uniform(values: np.ndarray) -> None:
    """Kolmogorov and Smirnov."""
    values = np.sort(values.ravel())
    steps = np.arange(values.size + 1) / values.size
    distance = max((steps[1:] - values).max(), (values - steps[:-1]).max())
    assert values[0] >= 0
    assert values[-1] < 1
    assert distance * math.sqrt(values.size) < 2.4, f"distance {distance}"  # p = 2e-5


# --- plans -----------------------------------------------------------------------------------------------------------


@given(
    samples=st.integers(0, 3000),
    batch_size=st.integers(1, 70),
    world_size=st.integers(1, 9),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_ranks_share_every_sample_exactly_once(samples, batch_size, world_size, drop_last, shuffle):
    """Over all ranks every sample is used exactly once, and drop_last leaves out only the short global batch."""
    ranks = [
        plan(samples, batch_size, drop_last=drop_last, shuffle=shuffle, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    used = np.concatenate([all_ids(one) for one in ranks])
    whole = samples - samples % (batch_size * world_size) if drop_last else samples
    assert len(used) == whole
    assert len(np.unique(used)) == whole
    if not (shuffle and drop_last):
        assert set(used.tolist()) == set(range(whole))
    short = [one.rows(len(one) - 1) if len(one) > samples // (batch_size * world_size) else 0 for one in ranks]
    assert max(short) - min(short) <= 1
    assert max(map(len, ranks)) - min(map(len, ranks)) <= (0 < samples % (batch_size * world_size) < world_size)


@given(samples=st.integers(1, 500), batch_size=st.integers(1, 50), data=st.data())
@settings(max_examples=60, deadline=None)
def test_rows_of_a_batch_are_its_parts(samples, batch_size, data):
    """The rows lo..hi of a batch are those rows of the whole batch."""
    one = plan(samples, batch_size)
    index = data.draw(st.integers(0, len(one) - 1))
    rows = one.rows(index)
    lo = data.draw(st.integers(0, rows))
    hi = data.draw(st.integers(lo, rows))
    np.testing.assert_array_equal(one.ids(index, lo, hi), one.ids(index)[lo:hi])


def test_a_row_without_shuffle_is_in_order():
    """Without shuffle the ids count up, and a global batch lies side by side over the ranks."""
    np.testing.assert_array_equal(all_ids(plan(10, 3, shuffle=False)), np.arange(10))
    parts = [plan(11, 2, shuffle=False, rank=rank, world_size=3) for rank in range(3)]
    assert [one.ids(0).tolist() for one in parts] == [[0, 1], [2, 3], [4, 5]]
    assert [one.ids(1).tolist() for one in parts] == [[6, 7], [8, 9], [10]]


def test_ranks_see_parts_of_one_order():
    """The global batches of several ranks are those of one rank with a batch as large as all of theirs."""
    whole = plan(100, 12)
    parts = [plan(100, 4, rank=rank, world_size=3) for rank in range(3)]
    for index in range(len(whole)):
        together = np.concatenate([one.ids(index) for one in parts])
        np.testing.assert_array_equal(together, whole.ids(index))


@pytest.mark.parametrize("index", [-1, 4])
def test_a_batch_outside_the_plan_raises(index):
    """A batch index outside 0..len-1 is an IndexError, not another batch."""
    for one in (plan(100, 32), listed([[0], [1], [2], [3]], 0, 0)):
        assert len(one) == 4
        with pytest.raises(IndexError):
            one.rows(index)
        with pytest.raises(IndexError):
            one.ids(index)


@pytest.mark.parametrize(("lo", "hi"), [(-1, 2), (0, 5), (3, 2)])
def test_rows_outside_a_batch_raise(lo, hi):
    """Rows outside 0..rows are an IndexError."""
    for one in (plan(100, 32), listed([[5], [6], [7], [1, 2, 3, 4]], 0, 0)):
        with pytest.raises(IndexError):
            one.ids(3, lo, hi)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"samples": -1}, "samples"),
        ({"batch_size": 0}, "batch_size"),
        ({"world_size": 0}, "world_size"),
        ({"rank": 2, "world_size": 2}, "rank"),
        ({"epoch": -1}, "epoch"),
        ({"seed": 1 << 64}, "seed"),
    ],
)
def test_parameters_out_of_range_are_named(changes, name):
    """A parameter out of range is a UsageError that names it."""
    with pytest.raises(UsageError, match=name):
        plan(**changes)


def test_a_plan_over_a_billion_samples_is_instant():
    """A plan stores nothing: a batch of a billion samples takes well under a tenth of a second, and no memory."""
    start = time.process_time()
    one = plan(1_300_000_001, 256)
    last = len(one) - 1
    ids = np.concatenate([one.ids(0), one.ids(last // 2), one.ids(last)])
    assert time.process_time() - start < 0.1
    assert len(np.unique(ids)) == 512 + one.rows(last)
    assert ids.min() >= 0
    assert ids.max() < 1_300_000_001


@pytest.mark.parametrize("one", [plan(50, 7, rank=1, world_size=2, seed=-3), listed([[3, 1], [2]], 1, 2)])
def test_plans_cross_the_wire(one):
    """A plan of either kind survives msgpack as a few bytes and stays itself."""
    data = msgspec.msgpack.encode(one)
    again = msgspec.msgpack.decode(data, type=Plan | ListedPlan)
    assert again == one
    assert len(data) < 200
    np.testing.assert_array_equal(all_ids(again), all_ids(one))


def test_a_bad_plan_on_the_wire_is_refused():
    """What arrives is checked as what is constructed is."""
    data = msgspec.msgpack.encode(plan(10, 1)).replace(b"\xaabatch_size\x01", b"\xaabatch_size\x00")
    with pytest.raises(msgspec.ValidationError, match="batch_size"):
        msgspec.msgpack.decode(data, type=Plan | ListedPlan)


def test_listed_batches_are_kept():
    """A sampler's batches come back as they were, and largest_id is the largest of them."""
    batches = [[5, 5, 2], (9,), np.array([0, 1])]
    one = listed(iter(batches), seed=3, epoch=4)
    assert [one.ids(index).tolist() for index in range(3)] == [[5, 5, 2], [9], [0, 1]]
    assert [one.rows(index) for index in range(3)] == [3, 1, 2]
    assert (one.seed, one.epoch, one.largest_id) == (3, 4, 9)
    assert len(listed([], 0, 0)) == 0
    assert listed([], 0, 0).largest_id == -1


@pytest.mark.parametrize("batches", [[[1.5]], [["a"]], [[-1]], [[1], []], [[1 << 70]]])
def test_a_sampler_of_something_else_is_refused(batches):
    """Ids that are not non-negative integers, and empty batches, are a UsageError."""
    with pytest.raises(UsageError):
        listed(batches, 0, 0)


@pytest.mark.parametrize(
    ("ids", "bounds"),
    [(b"1", b"\0" * 8), (b"", b""), (b"\0" * 8, b"\0" * 16), (b"\xff" * 8, b"\0" * 8 + b"\1" + b"\0" * 7)],
)
def test_a_torn_listed_plan_is_refused(ids, bounds):
    """Bytes that are not whole arrays, bounds that do not fit, and negative ids are a UsageError."""
    with pytest.raises(UsageError):
        ListedPlan(ids, bounds, 0, 0)


# --- the permutation --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [*range(1, 66), 1023, 1024, 1025, 1026, 1089, 4095, 4096, 4097, 65_537, 99_991])
def test_it_is_a_permutation_of_every_size(n):
    """Every id comes exactly once, whether n is sorted or sent through the network, square or prime."""
    np.testing.assert_array_equal(np.sort(order(n)), np.arange(n))


@given(n=st.integers(1, 1 << 62), key=st.integers(0, (1 << 64) - 1), data=st.data())
@settings(max_examples=100, deadline=None)
def test_images_of_different_positions_differ(n, key, data):
    """Up to sizes where no order could be stored, images stay inside and differ."""
    positions = np.array(data.draw(st.lists(st.integers(0, n - 1), unique=True, max_size=40)), np.int64)
    images = permute(positions, n, key)
    assert images.dtype == np.int64
    assert len(np.unique(images)) == len(positions)
    assert all(0 <= image < n for image in images.tolist())


@pytest.mark.parametrize("position", [-1, 10, 5000])
def test_positions_outside_raise(position):
    """A position outside range(n) is an IndexError in both regimes."""
    for n in (10, 5000):
        if not 0 <= position < n:
            with pytest.raises(IndexError):
                permute(np.array([position]), n, 1)


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_all_orders_of_few_samples_are_equally_likely(n):
    """Over many seeds all n! orders of n samples come equally often."""
    ranks = {one: rank for rank, one in enumerate(itertools.permutations(range(n)))}
    seen = [ranks[tuple(order(n, seed).tolist())] for seed in range(20 * len(ranks) + 2000)]
    assert_uniform(np.bincount(seen, minlength=len(ranks)))


@pytest.mark.parametrize("n", [40, 1031, 2000])
def test_every_sample_is_equally_likely_at_every_place(n):
    """Over many epochs, the places of first, middle and last samples are uniform, and so are the samples of a place."""
    orders = np.array([order(n, epoch=epoch) for epoch in range(1500)])
    buckets = (orders * 20) // n
    widths = np.bincount(np.arange(n) * 20 // n, minlength=20)
    for place in (0, 1, n // 2, n - 1):
        counts = np.bincount(buckets[:, place], minlength=20)
        assert_uniform(counts * (widths.mean() / widths))
    inverse = np.argsort(orders, axis=1)
    for sample in (0, n // 3, n - 1):
        assert_uniform(np.bincount(inverse[:, sample] * 20 // n, minlength=20) * (widths.mean() / widths))


def test_pairs_of_neighbours_are_uniform():
    """The pair of ids at neighbouring places is uniform over all pairs."""
    pairs = np.concatenate([np.stack([one[:-1], one[1:]], 1) for one in (order(2000, epoch=e) for e in range(60))])
    cells = (pairs[:, 0] // 100) * 20 + pairs[:, 1] // 100
    assert_uniform(np.bincount(cells, minlength=400))


@pytest.mark.parametrize("n", [997, 30_011])
def test_orders_show_no_correlation(n):
    """Neighbouring places, an order and the place itself, neighbouring epochs, and neighbouring seeds: uncorrelated."""
    one = order(n)
    assert_uncorrelated(one, np.arange(n))
    for lag in (1, 2, 7, math.isqrt(n), math.isqrt(n) + 1):
        assert_uncorrelated(one[:-lag], one[lag:])
    assert_uncorrelated(one, order(n, epoch=1))
    assert_uncorrelated(one, order(n, seed=8))


@pytest.mark.parametrize("n", [500, 3000])
def test_fixed_points_are_as_rare_as_chance(n):
    """Two epochs agree at one place on average, as independent orders do."""
    orders = [order(n, epoch=epoch) for epoch in range(400)]
    agreements = [int((a == b).sum()) for a, b in itertools.pairwise(orders)]
    assert abs(np.mean(agreements) - 1) < Z / math.sqrt(len(agreements))
    assert abs(np.var(agreements) - 1) < Z * math.sqrt(3 / len(agreements))


# --- draws --------------------------------------------------------------------------------------------------


def test_draws_are_known_numbers():
    """The numbers are part of the format: every machine and every version draws the same."""
    assert order(8).tolist() == [2, 3, 1, 5, 7, 4, 6, 0]
    assert order(2000)[:4].tolist() == [1173, 717, 481, 964]
    assert draws(7, 1, np.array([5]), 2, 2).tolist() == [[0.32427981404295003, 0.4409209993508033]]
    assert sample_seed(7, 1, 5) == 1388655908379123422


def test_a_draw_depends_on_its_five_coordinates_only():
    """A draw is the same in whatever batch, order and company it is made; each coordinate changes it."""
    ids = np.array([3, 900, 17, 3])
    table = draws(1, 2, ids, 4, 6)
    assert table.shape == (4, 6)
    np.testing.assert_array_equal(table[0], table[3])
    np.testing.assert_array_equal(draws(1, 2, ids[2:3], 4, 9)[0, :6], table[2])
    for other in (draws(2, 2, ids, 4, 6), draws(1, 3, ids, 4, 6), draws(1, 2, ids + 1, 4, 6), draws(1, 2, ids, 5, 6)):
        assert not np.isin(other, table).any()
    assert draws(1, 2, ids, 4, 0).shape == (4, 0)


def test_draws_are_uniform():
    """Over ids, draws, epochs and operations, the numbers are uniform in [0, 1), to the lowest bits that are used."""
    ids = np.arange(20_000)
    assert_continuous_uniform(draws(0, 0, ids, 0, 4))
    assert_continuous_uniform(draws(0, 0, np.array([5]), 3, 50_000))
    assert_continuous_uniform(np.stack([draws(0, epoch, np.array([5]), 1, 1) for epoch in range(5000)]))
    assert_continuous_uniform(np.stack([draws(seed, 0, np.array([5]), 1, 1) for seed in range(5000)]))
    assert_continuous_uniform(draws(0, 0, ids, 0, 1) * 2**40 % 1)


def test_draws_are_uncorrelated():
    """Neighbouring ids, draws, operations, epochs and seeds are uncorrelated, in value and in their pairs."""
    ids = np.arange(40_000)
    table = draws(0, 0, ids, 0, 3)
    others = [
        table[:, 1],
        draws(0, 0, ids + 1, 0, 1),
        draws(0, 0, ids, 1, 1),
        draws(0, 1, ids, 0, 1),
        draws(1, 0, ids, 0, 1),
    ]
    for other in others:
        assert_uncorrelated(table[:, 0], other)
        cells = (table[:, 0] * 16).astype(int) * 16 + (other.ravel() * 16).astype(int)
        assert_uniform(np.bincount(cells, minlength=256))


def test_draws_do_not_depend_on_the_order():
    """The order of an epoch and the draws of its samples have different keys."""
    one = order(30_011)
    assert_uncorrelated(one, draws(7, 0, np.arange(len(one)), 0, 1))
    assert_uncorrelated(one, draws(7, 0, one, 0, 1))


def test_sample_seeds_differ():
    """Samples, epochs and seeds have seeds of their own."""
    seeds = {sample_seed(seed, epoch, id_) for seed in range(5) for epoch in range(5) for id_ in range(400)}
    assert len(seeds) == 10_000
    assert all(0 <= seed < 1 << 64 for seed in seeds)


@pytest.mark.parametrize(
    ("plan", "rows"),
    [
        (Plan(10, 4, False, False, 0, 0), 4),
        (Plan(3, 4, False, False, 0, 0), 3),
        (Plan(3, 4, True, False, 0, 0), 0),
        (Plan(0, 4, False, False, 0, 0), 0),
        (listed([[1], [2, 3, 4], [5, 6]], 0, 0), 3),
        (listed([], 0, 0), 0),
    ],
)
def test_the_largest_batch_is_known(plan, rows):
    """`most_rows` is the number of rows of the largest batch, and 0 for a plan without batches."""
    assert plan.most_rows == rows == max((plan.rows(index) for index in range(len(plan))), default=0)
