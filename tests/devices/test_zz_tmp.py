import asyncio, os, signal, uvloop, pytest
from ddlp.devices.cpu import CpuPool
from tests.devices import samples
@pytest.mark.parametrize("n", [0,1,2])
def test_a(n, work_of):
    async def main():
        work = work_of(samples.Rows())
        pool = CpuPool(2)
        await pool.open(work.job())
        await work.batch(pool, 0)
        assert n > 5
    (uvloop.run if n else asyncio.run)(main())
