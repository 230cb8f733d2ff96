"""How much faster an epoch is when a slow device near the data helps the CPU: the paper's claim, measured for real.

    python benchmarks/overlap.py [--images 2048] [--batch-size 16] [--rounds 5] [--slowdown 4] [--float32]

One CPU worker on the first core, an emulated device `slowdown` times slower on the second, the main process where the
kernel puts it; the training step takes no time. CPU only, WRR and MTE take turns, epoch by epoch, and each epoch with
the device is compared with the CPU-only epoch of the same round. The bound is `1 + 1 / slowdown`: both sides always
busy, and the device exactly `slowdown` times slower. (DDLP reports up to 1.235 on ImageNet with a real device.)

Batches are uint8, as for a training step that normalises on the accelerator. `--float32` normalises on the CPU: four
times the bytes to bring over from the device, which MTE, unlike WRR, cannot hide behind the CPU's work.

With one core only, both sides share it and nothing can be gained: the program says so and ends.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time

import ddlp
from ddlp.data.synthetic import make_photos

GOAL = 0.97  # of the bound


def epoch_s(loader: ddlp.Loader) -> float:
    """Seconds for one epoch with a training loop that does nothing."""
    begun = time.perf_counter()
    for _ in loader:
        pass
    return time.perf_counter() - begun


def make_loaders(args: argparse.Namespace, folder: str, cores: list[int]) -> dict[str, ddlp.Loader]:
    def loader(policy: str | ddlp.Policy, *, device: bool) -> ddlp.Loader:
        devices: list[ddlp.Device] = [ddlp.CpuPool(workers=1, cpus=[cores[0]])]
        if device:
            devices.append(ddlp.EmulatedCsd(slowdown=args.slowdown, cpus=[cores[1]]))
        return ddlp.Loader(
            ddlp.ImageFolder(folder),
            ddlp.recipes.imagenet_train(224, normalize=args.float32),
            batch_size=args.batch_size,
            shuffle=True,
            devices=devices,
            policy=policy,
        )

    return {
        "CPU only": loader("wrr", device=False),
        "WRR": loader("wrr", device=True),
        "MTE": loader("mte", device=True),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2048)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slowdown", type=float, default=4.0)
    parser.add_argument("--float32", action="store_true", help="normalise on the CPU")
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        print("one core only: the CPU worker and the emulated device would share it, so there is nothing to measure")
        return 0
    with tempfile.TemporaryDirectory(prefix="ddlp-overlap-") as folder:
        print(f"making {args.images} photo-like files", flush=True)
        make_photos(folder, classes=8, per_class=-(-args.images // 8))
        loaders = make_loaders(args, folder, cores)
        seconds: dict[str, list[float]] = {name: [] for name in loaders}
        for round_number in range(args.rounds + 1):  # the first one warms up: files, processes, paces
            taken = {name: epoch_s(loader) for name, loader in loaders.items()}
            note = ", ".join(f"{name} {taken_s:.2f} s" for name, taken_s in taken.items())
            print(f"round {round_number}: {note}" if round_number else "warmed up", flush=True)
            for name in taken if round_number else ():
                seconds[name].append(taken[name])
        shares = {name: loader.statistics().delivered[ddlp.TAIL] / len(loader) for name, loader in loaders.items()}
        for loader in loaders.values():
            loader.close()
    bound = 1 + 1 / args.slowdown
    met = True
    for name in ("WRR", "MTE"):
        ratios = [alone / both for alone, both in zip(seconds["CPU only"], seconds[name], strict=True)]
        ratio = statistics.median(ratios)
        met &= ratio >= GOAL * bound
        print(
            f"{name} {ratio:.3f}x (from {min(ratios):.3f} to {max(ratios):.3f}), {ratio / bound:.1%} of the bound "
            f"{bound:.2f}x; {shares[name]:.1%} of the batches by the device"
        )
    print(f"goal: at least {GOAL:.0%} of the bound: {met}")
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
