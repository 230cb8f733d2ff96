"""How soon the first batch is there: of a new process, and of the next epoch.

    python benchmarks/first_batch.py [--images 512] [--batch-size 64] [--rounds 7]

From the start of the interpreter, with the imports of torch and ddlp and the start of two workers, to the first batch
of images, in a process of its own each time; files and libraries are in the page cache. Then, in the same process, the
time from the end of one epoch to the first batch of the next, beside the time per batch of a whole epoch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

from common import photos, verdict

GOAL_S, GOAL_BATCHES = 1.5, 2.0
EPOCHS = 6

PROGRAM = """
import json, sys, time
import ddlp

folder, batch_size, epochs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
loader = ddlp.Loader(
    ddlp.ImageFolder(folder), ddlp.recipes.imagenet_train(224), batch_size=batch_size, shuffle=True, num_workers=2
)
first_at, waits, batch_s = 0.0, [], []
for epoch in range(epochs):
    asked_at = time.monotonic()
    for number, _ in enumerate(loader):
        if number == 0:
            came_at = time.monotonic()
            first_at = first_at or came_at
    if epoch:
        waits.append(came_at - asked_at)
        batch_s.append((time.monotonic() - asked_at) / len(loader))
print(json.dumps([first_at, sorted(waits)[len(waits) // 2], sorted(batch_s)[len(batch_s) // 2]]))
"""


def start_and_restart(folder: str, batch_size: int) -> tuple[float, float, float]:
    """Seconds to the first batch of a process, to the first of a later epoch, and per batch; of the latter, medians."""
    begun = time.monotonic()
    command = [sys.executable, "-c", PROGRAM, folder, str(batch_size), str(EPOCHS)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    first_at, restart_s, batch_s = json.loads(done.stdout)
    return first_at - begun, restart_s, batch_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    found = []
    with photos(args.images) as folder:
        for number in range(args.rounds + 1):  # the first one warms up: files and libraries
            start_s, restart_s, batch_s = start_and_restart(folder, args.batch_size)
            note = f"first batch {start_s:.2f} s, restart {1e3 * restart_s:.0f} ms, a batch {1e3 * batch_s:.0f} ms"
            print(f"round {number}: {note}" if number else "warmed up", flush=True)
            if number:
                found.append((start_s, restart_s / batch_s))
    start_s, batches = (statistics.median(values) for values in zip(*found, strict=True))
    print(f"first batch after {start_s:.2f} s; the next epoch's after the time of {batches:.2f} batches")
    met = start_s <= GOAL_S and batches <= GOAL_BATCHES
    return verdict(f"at most {GOAL_S} s, and at most {GOAL_BATCHES} batch times", met)


if __name__ == "__main__":
    raise SystemExit(main())
