"""Each sample's draws are its own, whatever was made before it and with it; and what draws nothing pays nothing."""

import random
import subprocess
import sys

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from ddlp.data import randomness as module
from ddlp.data.randomness import Randomness, seed_generators
from ddlp.data.sampling import Plan, sample_seed, sample_seeds

DRAWS = {
    "none": lambda: None,
    "random": random.random,
    "gauss": lambda: random.gauss(0, 1),  # every second one is kept from the one before
    "numpy": np.random.rand,
    "normal": np.random.standard_normal,
    "torch": lambda: torch.rand(()).item(),
}


def plan_of(epoch=0):
    return Plan(1000, 10, drop_last=False, shuffle=True, seed=5, epoch=epoch)


def expected(plan, id_, kinds):
    """What a sample draws after all generators were seeded for it."""
    seed_generators(plan.seed, plan.epoch, id_)
    return [DRAWS[kind]() for kind in kinds]


class Drawing:
    """A data set of which sample `id_` draws kinds[id_ % len(kinds)]; `asked` is what was asked for."""

    def __init__(self, kinds):
        self.kinds = kinds
        self.asked = []

    def kinds_of(self, id_):
        return self.kinds[id_ % len(self.kinds)]

    def made(self, randomness, plan, ids):
        def make(lo, hi):
            self.asked += ids[lo:hi]
            return [[DRAWS[kind]() for kind in self.kinds_of(id_)] for id_ in ids[lo:hi]]

        return randomness.each(plan, ids, make)


@given(
    kinds=st.lists(st.lists(st.sampled_from(list(DRAWS)), max_size=3), min_size=1, max_size=7),
    batches=st.lists(st.tuples(st.integers(0, 1), st.lists(st.integers(0, 50), max_size=9)), max_size=6),
)
@settings(max_examples=300, deadline=None)
def test_draws_are_a_function_of_seed_epoch_and_id(kinds, batches):
    """In batches of any samples and epochs, with draws from any generators now and then, each sample's are its own."""
    dataset, randomness = Drawing(kinds), Randomness()
    for epoch, ids in batches:
        made = dataset.made(randomness, plan_of(epoch), ids)
        wanted = [expected(plan_of(epoch), id_, dataset.kinds_of(id_)) for id_ in ids]
        randomness.seed_batch(plan_of(epoch), 0)  # what else is done in between moves the generators too
        assert made == wanted


def test_seeds_differ_with_each_coordinate():
    """random, numpy and torch draw the same after the same coordinates, and differently after others."""
    kinds = ["random", "numpy", "torch"]
    plans = [Plan(9, 1, False, False, *words) for words in ((1, 2), (2, 2), (1, 3), (-1, 2))]
    drawn = [expected(plan, id_, kinds) for plan in plans for id_ in (3, 4)]
    assert drawn[0] == expected(plans[0], 3, kinds)
    assert all(len(set(column)) == len(drawn) for column in zip(*drawn, strict=True))


def test_samples_that_draw_nothing_are_made_once_and_unseeded(monkeypatch):
    """Without draws every sample is asked for once, and soon the generators are seeded once per batch."""
    dataset, randomness, plan, seeded = Drawing([["none"]]), Randomness(), plan_of(), []

    def counting(word):
        seeded.append(word)
        random.seed(word)

    monkeypatch.setattr(module, "_RANDOM", module._RANDOM._replace(seed=counting))
    for first in range(0, 1000, 100):
        dataset.made(randomness, plan, list(range(first, first + 100)))
    assert dataset.asked == list(range(1000))
    assert len(seeded) < 20
    assert len(set(seeded)) == 1


@pytest.mark.parametrize("kind", ["random", "numpy", "torch"])
def test_one_sample_is_made_again_when_all_draw(kind):
    """A data set that draws from the start has one sample made twice, and no more later."""
    dataset, randomness = Drawing([[kind]]), Randomness()
    for _ in range(3):
        dataset.made(randomness, plan_of(), list(range(100)))
    assert len(dataset.asked) == 301


def test_no_more_is_made_again_than_was_made_before():
    """A generator that is first used late costs less than the part since it was last looked at."""
    dataset, randomness = Drawing([["none"]]), Randomness()
    dataset.made(randomness, plan_of(), list(range(10)))
    dataset.kinds = [["numpy"]]
    before = len(dataset.asked)
    dataset.made(randomness, plan_of(), list(range(10)))
    assert len(dataset.asked) - before <= 20


def test_a_restored_generator_is_the_same_for_all():
    """A sample that puts back what it has drawn sees the state at rest, which depends on seed and epoch alone."""
    randomness = Randomness()

    def forked(lo, hi):
        samples = []
        for _ in range(lo, hi):
            state = random.getstate()
            samples.append(random.random())
            random.setstate(state)
        return samples

    made = [number for _ in range(3) for number in randomness.each(plan_of(), list(range(20)), forked)]
    assert len(set(made)) == 1
    assert randomness.each(plan_of(1), [0], forked) != made[:1]


def test_an_error_that_foreign_numbers_caused_is_no_error():
    """What raises over numbers that were not its own is made again; what raises over its own, or over none, raises."""
    plan, randomness = plan_of(), Randomness()
    seed_generators(plan.seed, plan.epoch, 7)
    own = random.random()

    def make(lo, hi):
        if random.random() != own:
            raise ValueError("not mine")
        return ["made"]

    assert randomness.each(plan, [7], make) == ["made"]
    with pytest.raises(ValueError, match="not mine"):
        randomness.each(plan, [8], make)
    with pytest.raises(KeyError):
        Randomness().each(plan, [1], lambda lo, hi: {}[lo])


def test_a_generator_that_appears_later_is_seeded_too():
    """torch may be loaded by the first sample that needs it: its draws are its own all the same."""
    code = (
        "from ddlp.data.randomness import *\n"
        "from ddlp.data.sampling import Plan\n"
        "assert 'torch' not in sys.modules\n"
        "def make(lo, hi):\n"
        "    import torch\n"
        "    return [float(torch.rand(())) for _ in range(lo, hi)]\n"
        "plan = Plan(9, 3, False, False, 0, 0)\n"
        "made = Randomness().each(plan, [4, 5], make)\n"
        "seed_generators(0, 0, 4)\n"
        "assert made[0] == make(0, 1)[0], made\n"
        "seed_generators(0, 0, 5)\n"
        "assert made[1] == make(0, 1)[0], made\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@given(seed=st.integers(-(2**63), 2**64 - 1), ids=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=9))
@settings(max_examples=100, deadline=None)
def test_seeds_of_many_samples_are_those_of_each(seed, ids):
    """The seeds of an array of ids are the seeds of its elements."""
    assert sample_seeds(seed, 3, np.array(ids, np.int64)).tolist() == [sample_seed(seed, 3, id_) for id_ in ids]
