"""The laws of an agent's life: it ends with its parent, however that ends, and the user's program is left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

PROGRAM = """
import asyncio, os, signal, sys, time
import numpy as np
from ddlp.data.arrays import ArrayDataset
from ddlp.data.maker import Preparation
from ddlp.data.sampling import Plan
from ddlp.devices.base import Job
from ddlp.devices.cpu import CpuPool
from ddlp.devices.emulated import EmulatedCsd
from ddlp.memory import Arena
from ddlp.types import TAIL, Claim

def job(dataset=None, **options):
    preparation = Preparation(ArrayDataset(np.arange(40)) if dataset is None else dataset, **options)
    return Job(preparation, Plan(40, 10, False, False, 0, 0), Arena())

def report(*devices):
    print(*(agent.pid for device in devices for agent in device._agents), flush=True)
"""


def start(body: str, path: Path | None = None, **options: object) -> subprocess.Popen:
    """Run a program, from a file where `path` says so."""
    source = PROGRAM + textwrap.dedent(body)
    if path is not None:
        path.write_text(source)
    return subprocess.Popen(
        [sys.executable, *(["-c", source] if path is None else [path])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        **options,
    )


def output(body: str, path: Path | None = None) -> tuple[str, str]:
    """What a program prints, to standard output and to standard error, until its end."""
    with start(body, path) as process:
        return process.communicate(timeout=30)


def runs(pid: int) -> bool:
    """Whether the process is there, and not only waits for its parent to notice that it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pids: list[int], seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while any(map(runs, pids)):
        assert time.monotonic() < end, f"one of the processes {pids} is left"
        time.sleep(0.02)


BOTH = """
async def main():
    pool, csd = CpuPool(2), EmulatedCsd(1, store=sys.argv[1] if len(sys.argv) > 1 else STORE)
    await pool.open(job())
    await csd.open(job())
    await csd.preprocess(Claim(0, TAIL, 1))
    report(pool, csd)
    WHAT
asyncio.run(main())
"""


def both(store: Path, what: str) -> str:
    return BOTH.replace("sys.argv[1] if len(sys.argv) > 1 else STORE", repr(str(store))).replace("WHAT", what)


def test_agents_end_with_a_killed_parent(tmp_path):
    """When the program is killed, its agents end and the device's folder goes, within seconds."""
    with start(both(tmp_path, "await asyncio.sleep(60)")) as process:
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == 3
        assert os.listdir(tmp_path)
        process.kill()
        wait_until_gone(pids)
    assert not os.listdir(tmp_path)


def test_agents_end_with_a_parent_that_forked(tmp_path):
    """A process forked from the program holds copies of its sockets, and keeps no agent alive."""
    what = "os.fork() or time.sleep(5); await asyncio.sleep(60)"
    with start(both(tmp_path, what), start_new_session=True) as process:
        pids = [int(pid) for pid in process.stdout.readline().split()]
        time.sleep(0.2)
        process.kill()
        wait_until_gone(pids, 3.0)
        os.killpg(process.pid, signal.SIGKILL)
    assert not os.listdir(tmp_path)


def test_a_busy_worker_ends_with_a_killed_parent():
    """A worker that is stuck in a sample ends all the same."""
    body = """
    from tests.devices.samples import Unlucky
    async def main():
        pool = CpuPool(1)
        await pool.open(job(Unlucky("hang")))
        report(pool)
        await pool.preprocess(Claim(0, TAIL, 1))
    asyncio.run(main())
    """
    with start(body) as process:
        pids = [int(pid) for pid in process.stdout.readline().split()]
        time.sleep(0.1)
        process.kill()
        wait_until_gone(pids)


def test_a_program_that_just_ends_leaves_nothing(tmp_path):
    """Devices that nobody closes end with the event loop's program, quietly, and take their folders along."""
    out, err = output(both(tmp_path, "pass"))
    wait_until_gone([int(pid) for pid in out.split()])
    assert not os.listdir(tmp_path)
    assert err == ""


def test_a_dropped_device_ends_its_agents(tmp_path):
    """A device that is collected without being closed ends its agents, while the program goes on."""
    what = """del pool, csd
    import gc
    gc.collect()
    time.sleep(0.01)
    while (left := [line for line in os.popen("ps -o args= --ppid %d" % os.getpid()) if "ddlp.agent" in line]):
        await asyncio.sleep(0.02)
    print("ended", os.listdir(STORE))
    """
    out, _ = output(both(tmp_path, what).replace("STORE", repr(str(tmp_path))))
    assert out.splitlines()[1] == "ended []"


def test_interrupting_the_program_is_the_programs_business(tmp_path):
    """Ctrl-C in a terminal ends the program with one traceback, its own; agents say nothing and end with it."""
    with start(both(tmp_path, "await asyncio.sleep(60)"), start_new_session=True) as process:
        pids = [int(pid) for pid in process.stdout.readline().split()]
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=10)
        wait_until_gone(pids)
    assert err.splitlines()[-1] == "KeyboardInterrupt"
    assert "ddlp/agent" not in err
    assert not os.listdir(tmp_path)


def test_classes_of_the_script_work_in_workers(tmp_path):
    """A data set class that the script itself defines is found by the workers; its guarded part does not run there."""
    body = """
    class Mine:
        def __len__(self): return 40
        def __getitem__(self, i): return i * 2
    async def main():
        pool = CpuPool(2)
        work = job(Mine())
        await pool.open(work)
        ref = await pool.preprocess(Claim(3, TAIL, 1))
        print(ref.place.arrays(ref.leaves)[0].tolist())
        await pool.aclose()
    print("imported")
    if __name__ == "__main__":
        asyncio.run(main())
    """
    out, err = output(body, tmp_path / "script.py")
    assert sorted(out.splitlines()) == ["[60, 62, 64, 66, 68, 70, 72, 74, 76, 78]", *["imported"] * 3]
    assert err == ""


def test_the_script_is_imported_only_where_it_is_needed(tmp_path):
    """Data sets of ddlp itself do not make workers import the script."""
    body = """
    async def main():
        pool = CpuPool(2)
        await pool.open(job())
        await pool.aclose()
    print("imported")
    asyncio.run(main())
    """
    assert output(body, tmp_path / "script.py") == ("imported\n", "")


def test_a_script_without_a_guard_is_told_so(tmp_path):
    """A script that starts a loader when workers import it ends with advice, not with ever more processes."""
    body = """
    class Mine:
        def __len__(self): return 40
        def __getitem__(self, i): return i * 2
    async def main():
        pool = CpuPool(2)
        await pool.open(job(Mine()))
    asyncio.run(main())
    """
    _, err = output(body, tmp_path / "script.py")
    assert "put that under `if __name__ == '__main__':`" in err


def test_what_a_session_defines_is_refused():
    """A class that only exists in an interactive session cannot reach workers; the message says what to do."""
    body = """
    class Mine:
        def __len__(self): return 40
        def __getitem__(self, i): return i * 2
    async def main():
        pool = CpuPool(2)
        try:
            await pool.open(job(Mine()))
        finally:
            await pool.aclose()
    asyncio.run(main())
    """
    _, err = output(body)
    assert "UsageError: Preparation(" in err
    assert "defined in this session" in err
    assert "move it to a module" in err


def test_prints_of_a_data_set_appear():
    """What a data set prints in a worker goes where the program's prints go."""
    body = """
    from tests.devices.samples import Unlucky
    async def main():
        pool = CpuPool(1)
        await pool.open(job(Unlucky("print")))
        await pool.preprocess(Claim(0, TAIL, 1))
        await pool.aclose()
    asyncio.run(main())
    """
    assert output(body) == ("a sample prints\n", "")


def test_the_users_start_method_is_left_alone():
    """Opening a pool does not settle multiprocessing's start method, nor touch signals or the random state."""
    body = """
    import multiprocessing, random
    async def main():
        pool = CpuPool(1)
        await pool.open(job())
        await pool.aclose()
    before = random.getstate(), signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGCHLD)
    asyncio.run(main())
    assert (random.getstate(), signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGCHLD)) == before
    multiprocessing.set_start_method("spawn")
    print("fine")
    """
    assert output(body) == ("fine\n", "")


def test_workers_start_together_and_without_torch():
    """No worker waits for another one to be ready before it is started, and none imports torch."""
    body = """
    async def main():
        pool = CpuPool(8)
        begun = time.monotonic()
        await pool.open(job())
        opened_s = time.monotonic() - begun
        stats = [open(f"/proc/{agent.pid}/stat").read().rsplit(")", 1)[1].split() for agent in pool._agents]
        starts = [int(fields[19]) / os.sysconf("SC_CLK_TCK") for fields in stats]
        torch = any("libtorch" in open(f"/proc/{agent.pid}/maps").read() for agent in pool._agents)
        await pool.aclose()
        print((max(starts) - min(starts)) / opened_s, torch)
    asyncio.run(main())
    """
    out, err = output(body)
    assert err == ""
    share_of_starting, torch = out.split()
    assert float(share_of_starting) < 0.5
    assert torch == "False"


def test_forking_while_agents_start_does_not_wedge_them():
    """Another thread forks all the time, as DataLoader does: starting agents does not wait for those children."""
    out, errors = output("""
        import concurrent.futures.thread  # whose own locks must not come into being in the middle of a fork
        import threading
        ended, children = threading.Event(), []

        def fork():
            while not ended.is_set() and len(children) < 300:
                pid = os.fork()
                if pid == 0:
                    time.sleep(60)  # holds whatever it has inherited
                    os._exit(0)
                children.append(pid)

        async def main():
            for _ in range(3):
                pool = CpuPool(4)
                async with asyncio.timeout(10):
                    await pool.open(job())
                await pool.aclose()

        thread = threading.Thread(target=fork)
        thread.start()
        try:
            asyncio.run(main())
            print("opened", flush=True)
        finally:
            ended.set()
            thread.join()
            for pid in children:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
    """)
    assert (out, errors) == ("opened\n", "")
