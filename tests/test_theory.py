"""The real engine and policies, in virtual time, against the closed forms of `ddlp.testing.theory`.

Two regimes have the same tau, the time of a batch that the head feeds:

* the accelerator's side limits it (copy and step take tau, preprocessing is quick): every closed form is exact;
* preprocessing limits it: the CPU works on while the accelerator is busy with a tail batch, which the form for WRR does
  not know of, so WRR is faster than its form, and is held against the lower bound for any policy instead.

rho is measured when tail batches are used. MTE uses them last, so it is its second epoch that is strictly balanced.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlp.policies.mte import MTE
from ddlp.policies.wrr import WRR
from ddlp.testing.simulate import Simulation, simulate
from ddlp.testing.theory import bound_s, cpu_only_s, proportional_s, shared_s

N = 5000
TAU = 0.01
ONE_PERCENT = 0.01

GRID = pytest.mark.parametrize(
    ("s", "rho"), [(TAU * slower, TAU * share) for slower in (1, 3.5, 1000) for share in (0.01, 0.5, 0.9)]
)
REGIMES = pytest.mark.parametrize("limit", ["accelerator", "preprocessing"])


def epoch(policy: WRR | MTE, limit: str, s: float, rho: float, epochs: int = 1) -> Simulation:
    """One point of the grid; checks what holds for every policy everywhere.

    Only the batches that measure a tail which costs the accelerator more than the head may cost more than they gain.
    """
    cpu_s, accel_head_s = (TAU / 5, TAU) if limit == "accelerator" else (TAU, rho)
    run = simulate(N, policy, cpu_s=cpu_s, csd_s=s, accel_head_s=accel_head_s, accel_tail_s=rho, epochs=epochs)
    assert run.head + run.tail == N
    for seconds in run.epoch_s:
        assert seconds >= run.bound_s * (1 - 1e-9), "faster than possible"
        assert rho > TAU or seconds <= run.cpu_only_s * 1.001 + 2 * TAU, "slower than the CPU alone"
    return run


@GRID
def test_wrr_reaches_its_closed_form_where_the_accelerator_limits(s: float, rho: float) -> None:
    """`N * tau * s / (s + tau - rho)` within one percent."""
    run = epoch(WRR(), "accelerator", s, rho)
    assert run.epoch_s[-1] == pytest.approx(shared_s(N, TAU, s, rho), rel=ONE_PERCENT)


@GRID
def test_wrr_reaches_the_lower_bound_where_preprocessing_limits(s: float, rho: float) -> None:
    """Within one percent of what any policy could reach, and never slower than the closed form."""
    run = epoch(WRR(), "preprocessing", s, rho)
    assert run.epoch_s[-1] == pytest.approx(run.bound_s, rel=ONE_PERCENT)
    assert run.epoch_s[-1] <= shared_s(N, TAU, s, rho) * (1 + ONE_PERCENT)


@REGIMES
@GRID
def test_balanced_mte_reaches_its_closed_form(limit: str, s: float, rho: float) -> None:
    """The same form as WRR's, in either regime, once rho is known."""
    run = epoch(MTE(), limit, s, rho, epochs=2)
    assert run.epoch_s[-1] == pytest.approx(shared_s(N, TAU, s, rho), rel=ONE_PERCENT)


@REGIMES
@GRID
def test_proportional_mte_reaches_its_closed_form(limit: str, s: float, rho: float) -> None:
    """`N * tau * (s + rho) / (s + tau)`, in either regime, from the first epoch on."""
    run = epoch(MTE(split="proportional"), limit, s, rho)
    assert run.epoch_s[-1] == pytest.approx(proportional_s(N, TAU, s, rho), rel=ONE_PERCENT)


@pytest.mark.parametrize("rho", [TAU, 1.2 * TAU, 5 * TAU])
def test_balanced_mte_gives_the_tail_nothing_where_it_gains_nothing(rho: float) -> None:
    """Where a tail batch costs the accelerator at least what a head batch does, the CPU works alone."""
    run = epoch(MTE(), "accelerator", 3 * TAU, rho, epochs=2)
    assert run.tail == 0
    assert run.epoch_s[-1] == pytest.approx(run.cpu_only_s, rel=1e-3)


@given(
    n=st.integers(0, 60),
    seconds=st.tuples(*[st.floats(0, 1e3, allow_subnormal=False) for _ in range(4)]),
)
def test_the_bound_is_the_best_share(n: int, seconds: tuple[float, float, float, float]) -> None:
    """The minimum over every share of the tail, one by one."""
    cpu, csd, head, tail = seconds
    every = [max((n - k) * cpu, k * csd, (n - k) * head + k * tail) for k in range(n + 1)]
    assert bound_s(n, cpu, csd, head, tail) == pytest.approx(min(every))


@given(tau=st.floats(1e-3, 1e3), slower=st.floats(1.0, 1e3), share=st.floats(0.0, 0.999))
def test_the_forms_agree_with_each_other(tau: float, slower: float, share: float) -> None:
    """Balanced is never slower than proportional, proportional never than the CPU; all meet as rho nears tau."""
    s, rho = tau * slower, tau * share
    assert shared_s(N, tau, s, rho) <= proportional_s(N, tau, s, rho) * (1 + 1e-9)
    assert proportional_s(N, tau, s, rho) <= cpu_only_s(N, tau) * (1 + 1e-9)
    assert shared_s(N, tau, s, tau) == pytest.approx(cpu_only_s(N, tau))
    assert proportional_s(N, tau, s, tau) == pytest.approx(cpu_only_s(N, tau))


def test_a_simulation_is_reproducible() -> None:
    """Equal arguments, equal results, to the order of every batch."""

    def run() -> Simulation:
        return simulate(500, WRR(), cpu_s=0.01, csd_s=0.03, accel_head_s=0.002, csd_store=4)

    assert run() == run()
    assert run().head + run().tail == 500


def test_what_takes_no_time_takes_no_time() -> None:
    """Speeds of zero are no special case: nothing waits, and nothing divides by them."""
    run = simulate(50, MTE(split="proportional"), cpu_s=0.0, csd_s=0.0, accel_head_s=0.0)
    assert (*run.epoch_s, run.wait_s, run.cpu_only_s, run.shared_s, run.proportional_s, run.bound_s) == (0.0,) * 6
