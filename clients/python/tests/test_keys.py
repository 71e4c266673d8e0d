"""Buckets and keys of items: packed in memory, and requested from gateways of which some may not know the dataset yet."""

import pytest

import larder
from larder.reading.source import GatewaySource, Keys
from larder.testing import MemorySource
from larder.training.loader import Loader

ENDPOINT = "http://127.0.0.1:9"


def test_keys_are_kept_packed():
    """Buckets and keys with any characters survive packing."""
    names = [("b", "a/1.jpg"), ("c", ""), ("b", "ünï/\n%2F")]
    keys = Keys(larder.ItemLocation(at, bucket, key, None, None) for at, (bucket, key) in enumerate(names))
    assert [keys[at] for at in range(len(keys))] == names


def test_keys_are_packed_as_they_come():
    """Locations are not in memory together: a dataset of ten million items would need gigabytes in every worker."""
    client, asked = larder.Client(ENDPOINT), []

    def page(name, start, count):
        asked.append(start)
        return [larder.ItemLocation(at, "b", f"k{at}", None, None) for at in range(start, min(start + count, 25_000))]

    client._page = page
    source = MemorySource(25_000)
    loader = Loader(ENDPOINT, "train", batch_size=16, source=source)
    client.dataset = lambda name: loader.info
    source.locations = GatewaySource(ENDPOINT, "train").locations
    source.locations.__self__._patient_client = client
    first = next(iter(source.locations(loader.info)))
    assert (first.key, asked) == ("k0", [0])
    assert loader.keys[24_999] == ("b", "k24999")


def test_keys_come_from_nodes_that_have_not_heard_of_the_dataset():
    """Behind a balancer, a node that does not know the dataset yet is asked again after a registration; each key comes once."""
    info, registered = MemorySource(5).describe(), []

    class Fleet:
        def dataset(self, name):
            raise larder.UnknownDataset(404, "UnknownDataset")

        def register(self, *file, **_):
            registered.append(file)
            return info

        def each_item(self, name, start, count):
            if start == len(registered) < 3:
                yield larder.ItemLocation(start, "b", f"k{start}", None, None)
            if len(registered) < 3:
                raise larder.UnknownDataset(404, "UnknownDataset")
            yield from (larder.ItemLocation(at, "b", f"k{at}", None, None) for at in range(start, 5))

    source = GatewaySource(ENDPOINT, "d/train.parquet", larder.Access(retry=larder.Retry(base=0)))
    source._client = source._patient_client = Fleet()
    assert [location.key for location in source.locations(info)] == ["k0", "k1", "k2", "k3", "k4"]
    assert registered == [("train", "d/train.parquet")] * 3


def test_keys_of_an_unknown_name_are_an_error():
    """Without a digest file nothing can be registered again: the refusal comes at once."""

    class Gateway:
        def dataset(self, name):
            raise larder.UnknownDataset(404, "UnknownDataset")

        def each_item(self, name, start, count):
            raise larder.UnknownDataset(404, "UnknownDataset")

    source = GatewaySource(ENDPOINT, "train")
    source._patient_client = Gateway()
    with pytest.raises(larder.UnknownDataset):
        next(iter(source.locations(MemorySource(5).describe())))
