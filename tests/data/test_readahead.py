"""Reading ahead: the system is told of files before they are decoded, of each once, and of few at a time."""

import errno
import io
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from ddlp.agent import server
from ddlp.agent.channel import HangUp
from ddlp.agent.protocol import Begin, Hello, Make, Open
from ddlp.agent.store import FileStore
from ddlp.data import recipes
from ddlp.data.folder import ImageFolder
from ddlp.data.image_rows import FileSamples
from ddlp.data.images import ImageFiles
from ddlp.data.maker import Preparation
from ddlp.data.sampling import Plan
from ddlp.data.shards import TarShards
from tests.data.making import idle
from tests.data.tars import samples, write_tar

AHEAD = FileSamples.ahead
SIZE = 1 << 20


class Watched(ImageFiles):
    """The same image `count` times; `events` says in which order they were announced and read."""

    def __init__(self, count=100):
        file = io.BytesIO()
        Image.new("RGB", (4, 4)).save(file, "PNG")
        self.image = file.getvalue()
        self.labels = np.arange(count)
        self.events = []

    def path(self, id_):
        return f"{id_}.png"

    def place(self, id_):
        return self.path(id_), 0, 0

    def encoded(self, id_):
        self.events.append(("read", id_))
        return self.image

    def will_need(self, id_):
        self.events.append(("announced", id_))

    def describe(self):
        raise NotImplementedError

    @property
    def fingerprint(self):
        return ""

    def happened(self, what):
        return [id_ for event, id_ in self.events if event == what]

    def most_outstanding(self):
        """How many were announced and not read yet, at most."""
        outstanding = np.cumsum([1 if event == "announced" else -1 for event, _ in self.events])
        return max(outstanding, default=0)


def plan_of(files, batch_size, epoch=0):
    return Plan(len(files), batch_size, drop_last=False, shuffle=True, seed=1, epoch=epoch)


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 60))
def test_each_file_is_announced_once_and_before_it_is_read(batch_size):
    """What is expected and then made: every sample is announced once, and AHEAD before it is read."""
    files = Watched()
    preparation = Preparation(files, recipes.imagenet_eval(8))
    maker, plan = preparation.maker(), plan_of(files, batch_size)
    maker.begin(plan)
    for index in range(len(plan)):
        files.events.clear()
        rows = plan.rows(index)
        maker.expect(index, 0, rows)
        maker.make(index, 0, rows, [np.empty((rows, *f.shape), f.dtype) for f in preparation.layout.fields], idle)
        ids = plan.ids(index).tolist()
        assert files.happened("announced") == files.happened("read") == ids
        for k, id_ in enumerate(ids):
            assert files.events.index(("announced", id_)) < files.events.index(("read", ids[max(0, k - AHEAD + 1)]))
        assert files.most_outstanding() <= AHEAD + 1


def test_what_cannot_be_is_not_expected():
    """A batch that the plan has not, of whatever mistake of the host, is not worth an error before its turn."""
    maker = Preparation(files := Watched(), recipes.imagenet_eval(8)).maker()
    maker.begin(plan_of(files, 10))
    maker.expect(99, 0, 10)
    maker.expect(0, 5, 99)
    assert not files.events


class Script:
    """A channel on which messages come in an order that is known: one list for each time that the agent listens."""

    def __init__(self, *heard):
        self.heard = list(heard)
        self.answers = []

    def receive(self, timeout_s):
        if self.heard:
            return self.heard.pop(0)
        if timeout_s is None:
            raise HangUp
        return []

    def send(self, message):
        self.answers.append(message)


def serve(files, folder, *heard):
    """What an agent answers that hears these messages, after the usual beginning."""
    folder.mkdir()
    script = Script([Hello(), Open(python=True), Begin(plan_of(files, 20))], *heard)
    job = Preparation(files, recipes.imagenet_eval(8))
    server.Server(script, lambda grow: FileStore(str(folder), None), job=lambda: job).serve()
    return script.answers[2:]


def test_the_next_batch_is_announced_while_this_one_is_made(tmp_path, monkeypatch):
    """A Make that comes while another is made has its first files announced at once, and each only once."""
    monkeypatch.setattr(server, "_LISTEN_EVERY_S", 0.0)
    files = Watched()
    plan = plan_of(files, 20)
    answers = serve(files, tmp_path / "store", [Make(1, 0, 0, 20)], *[[]] * 8, [Make(2, 1, 0, 20)])
    assert [type(answer).__name__ for answer in answers] == ["Made", "Made"]
    first, second = plan.ids(0).tolist(), plan.ids(1).tolist()
    assert files.events.index(("announced", second[AHEAD - 1])) < files.events.index(("read", first[10]))
    assert files.happened("announced")[:AHEAD] == first[:AHEAD]
    assert sorted(files.happened("announced")) == sorted(files.happened("read")) == sorted(first + second)
    assert files.most_outstanding() <= 2 * AHEAD + 1


def test_a_new_epoch_is_not_taken_for_the_old_one(tmp_path):
    """A Make behind a Begin is of another plan: what the old plan had in that place is not read."""
    files = Watched()
    old, new = plan_of(files, 20), plan_of(files, 20, epoch=1)
    serve(files, tmp_path / "store", [Make(1, 0, 0, 20)], [], [Begin(new), Make(2, 4, 0, 20)])
    wanted = {*old.ids(0).tolist(), *new.ids(4).tolist()}
    assert set(files.happened("read")) == wanted
    assert set(files.happened("announced")) <= wanted


# --- the system ------------------------------------------------------------------------------------------------------


def is_cached(path, offset=0, nbytes=SIZE):
    """Whether every page of a part of a file can be read without waiting for the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        for at in range(offset, offset + nbytes, 4096):
            os.preadv(fd, [bytearray(1)], at, os.RWF_NOWAIT)
    except OSError as error:
        if error.errno == errno.EAGAIN:
            return False
        pytest.skip(f"the file system of {path} does not say what is in memory: {error}")
    finally:
        os.close(fd)
    return True


def push_out(path):
    """Have the system forget the content of a file."""
    fd = os.open(path, os.O_RDWR)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
    if is_cached(path):
        pytest.skip(f"the file system of {path} keeps its files in memory")


def wait_until_cached(path, offset, nbytes):
    """Returns once it is; a test that waits in vain is ended by its time limit."""
    while not is_cached(path, offset, nbytes):
        pass


def test_an_announced_file_comes_from_the_disk_by_itself(tmp_path):
    """will_need has the system read the file: some time later it is in memory, though nobody has read it."""
    path = tmp_path / "a/1.png"
    path.parent.mkdir()
    path.write_bytes(os.urandom(SIZE // 8))
    folder = ImageFolder(tmp_path)
    push_out(path)
    folder.will_need(0)
    wait_until_cached(path, 0, SIZE // 8)


def test_of_a_shard_only_the_image_is_read_ahead(tmp_path):
    """will_need of a sample in a shard reads that member, and not the whole shard."""
    files = [(name, os.urandom(SIZE) if name.endswith("png") else data) for name, data in samples(4)]
    shards = TarShards(write_tar(tmp_path / "a.tar", files))
    path, offset, _ = shards.place(0)
    push_out(path)
    shards.will_need(0)
    wait_until_cached(path, offset, 64 << 10)
    assert not is_cached(path, *shards.place(3)[1:])


def test_announcing_never_fails(tmp_path):
    """A file that is gone is an error when it is read, and not before."""
    path = tmp_path / "a/1.png"
    path.parent.mkdir()
    path.touch()
    folder = ImageFolder(tmp_path)
    path.unlink()
    before = os.listdir("/proc/self/fd")
    folder.will_need(0)
    assert os.listdir("/proc/self/fd") == before
    with pytest.raises(FileNotFoundError):
        folder.encoded(0)
