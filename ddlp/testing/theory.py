"""How long an epoch takes, in closed form. All figures are seconds per batch unless named otherwise.

tau   of a batch fed by the host: `max(c / w, h + g)`: preprocessing c on w workers, copy to the accelerator h, step g
s     of a batch made by the computational storage device (CSD)
rho   of a tail batch on the accelerator: direct read and step

The closed forms are our own derivation for DDLP (IEEE Transactions on Computers 75(3), 2026, arXiv 2407.00005), not
formulas of the paper. They suppose that the host makes no head batch while the accelerator is busy with a tail batch,
which is so where the accelerator's side limits tau. Where preprocessing limits it, a runtime that overlaps everything
is faster than `shared_s`, and never faster than `bound_s`.
"""

from __future__ import annotations


def cpu_only_s(n: int, tau: float) -> float:
    """Seconds per epoch without a CSD: `N * tau`."""
    return n * tau


def shared_s(n: int, tau: float, s: float, rho: float) -> float:
    """Seconds per epoch of WRR and of balanced MTE: `N * tau * s / (s + tau - rho)`; no gain unless tau > rho.

    From `T = (N - k) * tau + k * rho` (the accelerator is never idle) and `T = k * s` (nor is the CSD).
    """
    if tau <= rho:
        return cpu_only_s(n, tau)
    if s <= rho:  # the CSD could make the whole epoch and the accelerator is the limit
        return n * rho
    return n * tau * s / (s + tau - rho)


def proportional_s(n: int, tau: float, s: float, rho: float) -> float:
    """Seconds per epoch of MTE with the paper's ratio: `N * tau * (s + rho) / (s + tau)`.

    The head's `N * s / (s + tau)` batches at tau each, then the tail's, all made meanwhile, at rho each.
    """
    return n * tau * (s + rho) / (s + tau) if s + tau > 0 else 0.0


def bound_s(n: int, cpu_s: float, csd_s: float, accel_head_s: float, accel_tail_s: float) -> float:
    """The least seconds per epoch that any policy could reach: no part is ever idle.

    The minimum over the tail's share k of `max((N - k) * cpu, k * csd, (N - k) * accel_head + k * accel_tail)`.
    """

    def seconds(k: int) -> float:
        return max((n - k) * cpu_s, k * csd_s, (n - k) * accel_head_s + k * accel_tail_s)

    low, high = 0, n  # a maximum of straight lines is convex in k: walk down its slope by halves
    while low < high:
        middle = (low + high) // 2
        if seconds(middle) <= seconds(middle + 1):
            high = middle
        else:
            low = middle + 1
    return seconds(low)
