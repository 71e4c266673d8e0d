"""Plain clients in the simulator: caches, eviction orders, access streams with parts."""

import json

import pytest

from gateway.cli import main
from gateway.model.errors import ConfigError
from gateway.policies.streams.pattern import Pattern
from gateway.sim.jobs.scenario import parse_as
from gateway.sim.streams.read_scenario import ReadScenario
from gateway.sim.streams.transparent import simulate_reads

HEAD = """
title = "reads"
capacity = "{capacity}"
listing = {listing}

[origin]
bandwidth = "125MB"
latency = 0.1
"""


def prefix(name="p", **fields):
    """A table of objects."""
    return table("prefixes", name=name, **{"files": 400, "size": "100kB", **fields})


def client(name="c", prefix="p", order="epochs", **fields):
    """A table of a client."""
    return table("clients", name=name, prefix=prefix, order=order, **fields)


def run(name, mode, **fields):
    """A table of a run."""
    return table("runs", name=name, mode=mode, **fields)


def table(kind, **fields):
    """One of an array of tables, as TOML."""
    return "\n".join([f"[[{kind}]]", *(f"{name} = {value_of(value)}" for name, value in fields.items()), ""])


def value_of(value):
    """A value, as TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {value_of(each)}" for name, each in value.items()) + "}"
    return json.dumps(value)


def text(*tables, capacity="20MB", listing=True):
    """A scenario's file."""
    return "\n".join([HEAD.format(capacity=capacity, listing=str(listing).lower()), *tables])


def simulated(*tables, **head):
    """The results of all runs, by name."""
    return {one.run.name: one for one in simulate_reads(parse_as(ReadScenario, text(*tables, **head), "test"))}


def test_without_a_cache_every_read_goes_to_the_origin():
    """Rule: each read waits for the origin's latency and its bytes."""
    found = simulated(prefix(), client(), run("none", "none"))["none"]
    assert (found.hit_ratio(), found.origin_bytes) == (0.0, 40_000_000)
    assert found.mean_seconds() == pytest.approx(400 * (0.1 + 100_000 / 125e6), rel=0.01)


def test_grouped_files_are_read_as_long_as_one_after_the_other():
    """Rule: files simulated as one count, wait and compute as often as they would alone, with a cache and without."""
    runs = (run("none", "none"), run("lru", "lru"))
    alone = simulated(prefix(), client(epochs=2, compute=0.2), *runs, capacity="1GB")
    grouped = simulated(prefix(grouped=10), client(epochs=2, compute=0.2), *runs, capacity="1GB")
    for name, found in grouped.items():
        assert (found.hit_ratio(), found.origin_bytes) == (alone[name].hit_ratio(), alone[name].origin_bytes)
        assert found.mean_seconds() == pytest.approx(alone[name].mean_seconds(), rel=0.01)
    with pytest.raises(ConfigError, match="files must be a multiple of grouped"):
        simulated(prefix(files=401, grouped=10), client(), *runs)


def test_uniform_keeps_its_share_of_epochs_and_lru_less():
    """Rule: of a dataset twice the cache uniform has half the reads from the second epoch on; LRU evicts the next reads."""
    found = simulated(prefix(), client(epochs=8), run("uniform", "uniform"), run("lru", "lru"), run("fifo", "fifo"))
    assert found["uniform"].hit_ratio() == pytest.approx(7 / 8 / 2, abs=0.02)
    assert found["lru"].hit_ratio() < found["uniform"].hit_ratio() - 0.08
    assert found["fifo"].hit_ratio() < found["uniform"].hit_ratio() - 0.08


def test_orders_serve_hot_items_as_is_known_of_them():
    """Rule: with skewed reads ARC has more hits than LRU, and LRU more than first in, first out."""
    tables = (prefix(), client(order="zipf, anywhere", reads=6000), run("lru", "lru"), run("arc", "arc"))
    found = simulated(*tables, run("fifo", "fifo"), capacity="4MB")
    assert found["arc"].hit_ratio() > found["lru"].hit_ratio() > found["fifo"].hit_ratio()


def test_streams_recognise_a_scan_and_read_ahead():
    """Rule: after the first window a scan of small objects hits, and hardly any load is wasted."""
    found = simulated(
        prefix(files=2000),
        client(order="scan", compute=0.05),
        run("streams", "streams"),
        run("without", "streams", without=["prefetch"]),
        run("lru", "lru", stride=True),
    )
    assert found["streams"].patterns == {"data/p/": Pattern.SEQUENTIAL}
    assert found["streams"].hit_ratio() > 0.9
    assert found["streams"].wasted_bytes < 0.02 * found["streams"].origin_bytes
    assert found["streams"].mean_seconds() < 0.5 * found["lru"].mean_seconds()
    assert found["without"].hit_ratio() == 0.0


def test_below_folders_only_what_is_read_there_is_loaded():
    """Rule: a client that reads one file of every folder has hits, and the other files stay at the origin."""
    found = simulated(
        prefix(folders=500, files=10, same_names=True),
        client(order="scan", file="000003", compute=0.05),
        run("streams", "streams"),
    )["streams"]
    assert found.hit_ratio() > 0.7
    assert found.origin_bytes <= 1.05 * 500 * 100_000


def test_a_scan_goes_on_over_the_ends_of_folders():
    """Rule: as in a gateway, a scan of class folders has the next objects of all folders loaded ahead."""
    tables = (prefix(folders=120, files=20), client(order="scan", compute=0.05))
    assert simulated(*tables, run("streams", "streams"))["streams"].hit_ratio() > 0.8


def test_a_second_scan_is_read_ahead_without_a_listing():
    """Rule: as in a gateway, names that were read stand in where the store may not be listed."""
    tables = (prefix(files=500), client(order="scan", epochs=2, compute=0.05))
    results = simulated(
        *tables, run("streams", "streams"), run("without", "streams", without=["prefetch"]), listing=False
    )
    assert results["streams"].hit_ratio() > results["without"].hit_ratio() + 0.3


def test_blocks_of_large_objects_follow_consecutive_ones():
    """Rule: before an object is a stream, 4 blocks follow 4 consecutive ones; with streams as with stride alone."""
    tables = (prefix(files=4, size="200MB"), client(order="scan", compute=0.3))
    found = simulated(
        *tables, run("lru", "lru", stride=True), run("streams", "streams"), run("plain", "lru"), capacity="200MB"
    )
    assert found["lru"].hit_ratio() > 0.85
    assert found["streams"].hit_ratio() > 0.85
    assert found["plain"].hit_ratio() == 0.0


def test_a_random_stream_that_fits_is_loaded_whole():
    """Rule: as much as was read is loaded ahead, all of it in one walk; nothing when the cache holds a small part."""
    fits = simulated(prefix(files=1000), client(compute=0.3), run("streams", "streams"), capacity="150MB")["streams"]
    assert fits.hit_ratio() > 0.4
    assert fits.origin_bytes == 100_000_000
    scarce = simulated(prefix(files=1000), client(compute=0.3), run("streams", "streams"), capacity="5MB")["streams"]
    assert scarce.ahead_bytes == 0


def test_streams_do_well_where_either_order_does():
    """Rule: a training job and a query job together have the hits of the better order each."""
    tables = (
        prefix("train", files=300),
        prefix("query", files=300),
        client("t", "train", epochs=24),
        client("q", "query", "zipf, anywhere", reads=7200),
    )
    found = simulated(*tables, run("lru", "lru"), run("uniform", "uniform"), run("streams", "streams"), capacity="20MB")
    assert found["streams"].hit_ratio(Pattern.RANDOM) > found["lru"].hit_ratio(Pattern.RANDOM)
    assert found["streams"].hit_ratio(Pattern.SKEWED) > found["uniform"].hit_ratio(Pattern.SKEWED)
    assert found["streams"].hit_ratio() >= max(found["lru"].hit_ratio(), found["uniform"].hit_ratio()) - 0.01


def test_a_stream_that_ended_gives_its_space():
    """Rule: the remaining job gets the ended one's space within two minutes; without time-to-live it has less."""
    tables = (
        prefix("a", files=500),
        prefix("b", files=500),
        client("short", "a", epochs=2, compute=0.02),
        client("long", "b", epochs=12, compute=0.02),
    )
    runs = (run("streams", "streams"), run("without", "streams", without=["lifetime"]))
    found = simulated(*tables, *runs, capacity="50MB")
    assert found["streams"].released > 0
    assert found["without"].released == 0
    assert found["streams"].occupied["data/b/"][-1] > 45_000_000


def test_without_a_listing_streams_still_help():
    """Rule: where the store refuses to be listed, the names that were read stand in."""
    found = simulated(prefix(), client(epochs=8), run("streams", "streams"), run("lru", "lru"), listing=False)
    assert found["streams"].patterns == {"data/p/": Pattern.RANDOM}
    assert found["streams"].hit_ratio() > found["lru"].hit_ratio()


def test_a_recorded_trace_is_read_in_its_order(tmp_path):
    """Rule: a trace names key, block and size; its objects need no table."""
    path = tmp_path / "trace.csv"
    path.write_text("a/1,0,1000\na/2,0,1000\na/1,0,1000\nbig,1,9000000\n")
    found = simulated(table("clients", name="t", trace=str(path)), run("lru", "lru"))["lru"]
    (one,) = found.clients
    assert (one.reads, one.hits, one.bytes, one.pattern) == (4, 1, 4_003_000, "trace")


@pytest.mark.parametrize("content", ["a,b,c\n", "a,1\n", "a,-1,10\n", "a,0,0\n", "a,1,10\n", "", None])
def test_a_trace_that_cannot_be_read_is_refused(tmp_path, content):
    """Rule: the message names the file."""
    path = tmp_path / "trace.csv"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=r"trace\.csv"):
        simulated(table("clients", name="t", trace=str(path)), run("lru", "lru"))


def test_a_client_that_would_read_nothing():
    """Rule: a file's name that no object has is refused; the smallest part of an epoch is one read."""
    with pytest.raises(ConfigError, match="clients: c: no object below p/ is named 'gone'"):
        simulated(prefix(), client(file="gone"), run("lru", "lru"))
    found = simulated(prefix(files=2), client(epochs=0.001), run("lru", "lru"))["lru"]
    assert found.clients[0].reads == 1


@pytest.mark.parametrize(
    ("wrong", "right", "message"),
    [
        ('order = "epochs"', 'order = "magic"', "order must be one of"),
        ('prefix = "p"', 'prefix = "q"', "there is no prefix 'q'"),
        ('mode = "lru"', 'mode = "magic"', "runs[0].mode"),
        ('name = "lru2"', 'name = "lru"', "the name 'lru' comes twice"),
    ],
)
def test_a_wrong_scenario_of_reads_is_refused(wrong, right, message):
    """Rule: the message names the wrong field."""
    good = text(prefix(), client(), run("lru", "lru"), run("lru2", "lru"))
    assert wrong in good
    with pytest.raises(ConfigError) as refused:
        parse_as(ReadScenario, good.replace(wrong, right, 1), "test")
    assert message in str(refused.value)


def test_the_command_prints_runs_clients_and_streams(tmp_path, capsys):
    """Rule: a scenario with clients is simulated by the same command; ``--json`` gives all that was measured."""
    path = tmp_path / "reads.toml"
    path.write_text(text(prefix(), client("trainer", epochs=2), run("lru", "lru"), run("streams", "streams")))
    assert main(["simulate", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "origin sent" in printed
    assert "trainer" in printed
    assert "data/p/" in printed
    assert main(["simulate", str(path), "--json", "--seed", "3"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in document["runs"]] == ["lru", "streams"]
    assert document["runs"][1]["patterns"] == {"data/p/": "random"}


def test_prefixes_may_have_parts_of_their_own():
    """Rule: a prefix with a part keeps it regardless of other reads; the others share the rest."""
    parts = {"p": "10MB"}
    found = simulated(
        prefix(files=200),
        prefix("q", files=1000),
        client(epochs=10.0),
        client("d", "q", order="with replacement", reads=10_000),
        run("shared", "lru"),
        run("apart", "lru", parts=parts),
    )
    trained = {name: one.clients[0].hits / one.clients[0].reads for name, one in found.items()}
    assert trained["shared"] < 0.2
    assert trained["apart"] == pytest.approx(0.9 * 0.5, abs=0.02)
    for wrong in ({"x": "1MB"}, {"p": "30MB"}):
        with pytest.raises(ConfigError, match="parts"):
            simulated(prefix(), client(), run("apart", "lru", parts=wrong))
    with pytest.raises(ConfigError, match="parts"):
        simulated(prefix(), client(), run("streams", "streams", parts=parts))
