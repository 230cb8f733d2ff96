"""Compare ddlp with other loaders on ImageNet's training recipe: same files, same machine, turn by turn.

    python benchmarks/peers/run.py [--rounds 5] [--seconds 10] [--only ddlp,dali] [--report docs/benchmarks.md]

Every row runs once a round, in a process of its own (A B C ... A B C), with a warm-up that is not measured; its ratio
is to the baseline of the same round, and what is printed are medians over the rounds. Rows whose environment is not
set up (benchmarks/peers/setup.py) are left out and named. Ctrl-C ends the run with a report of what there is.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))
import plain
from driver import Crop
from make_images import cache_folder, image_set
from quality import Quality, chosen_crops, quality
from report import Rounds, report, write
from turns import BASELINE, ROWS, Row, TurnError, Work, pixels, prepare, turn

MEANS = {True: 0.25, False: 15.0}  # by how much the mean of the pixels may differ from the baseline's


def compare_pixels(rows: list[Row], work: Work) -> dict[str, Quality]:
    """The pixels of each row against Pillow's."""
    found = {}
    crops = chosen_crops(work.folder)
    with tempfile.TemporaryDirectory(prefix="ddlp-peers-") as folder:
        path = Path(folder) / "crops.json"
        for row in rows:
            path.write_text(json.dumps(crops))
            try:
                pixels(row, work, path)
            except TurnError as error:
                print(f"pixels of {row.name}: NOT COMPARED, {error}", flush=True)
                continue
            made = [Crop(*crop) for crop in json.loads(path.read_text())]
            found[row.name] = quality(np.load(path.with_suffix(".npy")), plain.crops(made))
            print(f"pixels of {row.name}: {found[row.name]}", flush=True)
    return found


def one_round(number: int, rows: list[Row], work: Work, rounds: Rounds) -> None:
    """Every row once, in both kinds of batches."""
    for row in rows:
        for float32 in (True, False):
            name = f"{row.name} {'float32' if float32 else 'uint8'}"
            try:
                taken = turn(row, work, float32=float32)
            except TurnError as error:
                print(f"round {number}: {name}: FAILED, {error}", flush=True)
                continue
            rounds.setdefault((row.name, float32), {})[number] = taken
            base = rounds.get((BASELINE, float32), {}).get(number, taken)
            print(
                f"round {number}: {name:19} {taken.images_s:6.0f} images/s {taken.images_s / base.images_s:5.2f}x "
                f"{taken.cpu_ms:5.2f} CPU ms/image {taken.pss_mb:5.0f} MB, first batch {taken.first_s:4.1f} s, "
                f"{taken.others:.2f} cores busy elsewhere",
                flush=True,
            )
            if abs(taken.mean - base.mean) > MEANS[float32]:
                print(f"round {number}: {name}: WRONG PIXELS? mean {taken.mean:.2f}, baseline {base.mean:.2f}")


def prepared(rows: list[Row], work: Work) -> dict[str, str]:
    """Have each row ready; why not, for those that cannot be."""
    absent = {}
    for row in rows:
        if why := row.missing():
            absent[row.name] = why
            continue
        try:
            prepare(row, work)
        except TurnError as error:
            absent[row.name] = "its format cannot be written"
            print(error)
    for name, why in absent.items():
        print(f"without {name}: {why}", flush=True)
    return absent


def chosen(only: str) -> list[Row]:
    """The rows of this name, and always the baseline. Raises SystemExit for a name that there is not."""
    names = set(filter(None, only.split(","))) or {row.name for row in ROWS}
    if unknown := names - {row.name for row in ROWS}:
        raise SystemExit(f"no such row: {', '.join(unknown)}; there are {', '.join(row.name for row in ROWS)}")
    return [row for row in ROWS if row.name in names | {BASELINE}]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0, help="measured in each turn")
    parser.add_argument("--only", default="", help=f"some of {','.join(row.name for row in ROWS)}")
    parser.add_argument("--images", type=Path, help="a folder in ImageFolder layout instead of the made set")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--report", type=Path, help="a page with the marks of the report, such as docs/benchmarks.md")
    args = parser.parse_args()
    folder = (args.images or image_set()).resolve()
    cache = cache_folder() / "converted" / f"{folder.name}-{zlib.crc32(os.fsencode(folder)):08x}"
    cache.mkdir(parents=True, exist_ok=True)
    work = Work(folder, cache, args.batch_size, args.workers, args.seconds)
    rows = chosen(args.only)
    absent = prepared(rows, work)
    rows = [row for row in rows if row.name not in absent]
    rounds: Rounds = {}
    found: dict[str, Quality] = {}
    try:
        found = compare_pixels(rows, work)
        for number in range(1, args.rounds + 1):
            one_round(number, rows, work, rounds)
    except KeyboardInterrupt:
        print("\nended early")
    text = report(
        rounds, found, absent, work, f"python {os.path.relpath(sys.argv[0])} {' '.join(sys.argv[1:])}".strip()
    )
    print(f"\n{text}")
    if args.report:
        write(text, args.report)
    return 0 if rounds else 1


if __name__ == "__main__":
    raise SystemExit(main())
