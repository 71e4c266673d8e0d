"""The store compared with a dictionary: they agree under any operations, and index and disk stay equal."""

import asyncio
import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.base.config import CacheSettings
from gateway.model.errors import BlobGone
from gateway.store.store import Store
from rig.consistency import assert_index_equals_disk
from tests.effort import examples
from tests.stores import BLOCK, FakeClock, get, key_of, meta_of, put, write_blob

CAPACITY = 20 * BLOCK
names = st.sampled_from(["a", "a/1", "a/2", "b", "ä/€", "c%", "c%/x", "c_/y"])
contents = st.sampled_from([b"", b"x", b"y" * 100, b"z" * BLOCK, b"z" * BLOCK + b"1", b"z" * 2 * BLOCK + b"q" * BLOCK])
etags = st.sampled_from(['"1"', '"2"'])
identities = st.sampled_from(["o/A", "o/B"])


class StoreAndDictionary(RuleBasedStateMachine):
    """The machine; ``model`` holds content, ETag and grants of what must be in the cache."""

    @initialize()
    def start(self):
        """An empty cache."""
        self.root = Path(tempfile.mkdtemp(prefix="larder-model-"))
        self.runner = asyncio.Runner()
        self.clock = FakeClock()
        self.model: dict[str, tuple[bytes, str, dict[str, float]]] = {}
        self.open()

    def open(self):
        """A new start of the node."""
        chosen = CacheSettings(dir=str(self.root), capacity=CAPACITY, reserve=0, block_size=BLOCK, open_files=8)
        self.store = self.runner.run(Store.open(chosen, now=self.clock))
        assert self.runner.run(self.store.try_lock())

    async def forgotten(self, keys):
        """Forget keys; the store needs a running event loop."""
        await self.store.forget(keys)

    @rule(name=names, content=contents, etag=etags)
    def fill(self, name, content, etag):
        """A fill of the whole object; the same ETag keeps the grants, another one drops them."""
        self.clock.time += 1
        old = self.model.get(name)
        same = old is not None and (old[1], len(old[0])) == (etag, len(content))
        self.runner.run(put(self.store, name, content, etag=etag, confirmed_at=self.clock.time))
        self.model[name] = (content, etag, old[2] if same else {})

    @rule(name=names, content=contents)
    def fill_too_late(self, name, content):
        """A fill that a write overtakes leaves nothing, and the write leaves nothing."""
        key = key_of(name)
        generation = self.store.generations.of(key)
        ref = self.runner.run(write_blob(self.store, content[:BLOCK]))
        self.runner.run(self.forgotten([key]))
        recorded = self.runner.run(
            self.store.record(key, meta_of(content), BLOCK, {0: ref}, generation=generation, confirmed_at=1.0)
        )
        assert recorded is None
        self.model.pop(name, None)

    @rule(chosen=st.lists(names, max_size=3))
    def forget(self, chosen):
        """Several keys at once, stored or not."""
        self.runner.run(self.forgotten([key_of(name) for name in chosen]))
        for name in chosen:
            self.model.pop(name, None)

    @rule(prefix=st.sampled_from(["", "a", "a/", "c%", "c%/", "ä"]))
    def forget_prefix(self, prefix):
        """All keys that begin so."""
        gone = [name for name in self.model if name.startswith(prefix)]
        assert self.runner.run(self.store.forget_prefix(key_of(prefix))) == len(gone)
        for name in gone:
            del self.model[name]

    @rule(size=st.integers(1, CAPACITY))
    def evict(self, size):
        """Room is always made, and what goes, goes whole or by blocks."""
        assert self.runner.run(self.store.make_room(size))
        self.forget_what_was_evicted()
        assert self.store.status().bytes + size <= CAPACITY

    @rule()
    def sweep(self):
        """The watermarks hold after a sweep."""
        self.runner.run(self.store.sweep())
        self.forget_what_was_evicted()
        assert self.store.status().bytes <= 0.95 * CAPACITY

    def forget_what_was_evicted(self):
        """The model follows an eviction, which may only have taken blobs away."""
        for name, (content, _, _) in list(self.model.items()):
            if self.runner.run(get(self.store, name)) != content:
                self.runner.run(self.forgotten([key_of(name)]))
                del self.model[name]

    @precondition(lambda self: self.model)
    @rule(data=st.data(), identity=identities)
    def grant(self, data, identity):
        """A grant of something that is stored."""
        name = data.draw(st.sampled_from(sorted(self.model)))
        self.clock.time += 1
        record = self.runner.run(self.store.lookup(key_of(name)))
        self.runner.run(self.store.grant(record.row_id, identity, self.clock.time))
        self.model[name][2][identity] = self.clock.time

    @precondition(lambda self: self.model)
    @rule(data=st.data(), identity=identities)
    def revoke(self, data, identity):
        """A grant is taken back, whether there was one or not."""
        name = data.draw(st.sampled_from(sorted(self.model)))
        record = self.runner.run(self.store.lookup(key_of(name)))
        self.runner.run(self.store.revoke(record.row_id, identity))
        self.model[name][2].pop(identity, None)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), byte=st.integers(0, 255))
    def damage(self, data, byte):
        """A file is overwritten: its objects are refused when read, then gone; others are untouched."""
        files = sorted(path for path in (self.root / "blobs").glob("*/*") if path.stat().st_size)
        if not files:
            return
        path = data.draw(st.sampled_from(files))
        content = path.read_bytes()
        if content[0] == byte:
            return
        path.write_bytes(bytes([byte]) + content[1:])
        os.utime(path, ns=(1, 1))
        for name, (expected, _, _) in list(self.model.items()):
            pieces = [expected[at : at + BLOCK] for at in range(0, len(expected), BLOCK)]
            if content in pieces:
                try:
                    assert self.runner.run(get(self.store, name)) is None
                except BlobGone:
                    assert self.runner.run(get(self.store, name)) is None
                self.runner.run(self.forgotten([key_of(name)]))
                del self.model[name]

    @rule(recover=st.booleans())
    def reopen(self, recover):
        """A stop and a new start, with and without recovery, change nothing."""
        self.runner.run(self.store.close())
        self.open()
        if recover:
            report = self.runner.run(self.store.recover())
            assert (report.broken, report.miscounted) == (0, 0)

    @invariant()
    def agree(self):
        """Everything in the dictionary is served with its bytes, ETag and grants, and nothing else is."""
        if not hasattr(self, "store"):
            return
        for name in ["a", "a/1", "a/2", "b", "ä/€", "c%", "c%/x", "c_/y"]:
            record = self.runner.run(self.store.lookup(key_of(name)))
            if name not in self.model:
                assert record is None
                continue
            content, etag, grants = self.model[name]
            assert (record.meta.etag, record.meta.size) == (etag, len(content))
            assert self.runner.run(get(self.store, name)) == content
            assert self.runner.run(self.store.grants(record.row_id)) == grants
        self.runner.run(self.forgotten([]))
        assert_index_equals_disk(self.root)

    def teardown(self):
        """Close the store and remove its directory."""
        if hasattr(self, "store"):
            self.runner.run(self.store.close())
            self.runner.close()
            shutil.rmtree(self.root)


StoreAndDictionary.TestCase.settings = settings(max_examples=examples(20), stateful_step_count=15)


class TestStoreAndDictionary(StoreAndDictionary.TestCase):
    """Collected by pytest."""
