"""Nodes, warm-ups, purges and space in the dashboard of a real gateway."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Route, expect

from gateway.policies.streams.pattern import WINDOW
from rig.batches import bytes_of, stock
from rig.clients import Client, get
from rig.gateways import Running, Settings, cache_status, gateway
from rig.processes import wait_until
from rig.world import SOON, Origin
from tests.browser.chromium import PATIENCE, READ_TOKEN, TOKEN, Played
from tests.browser.console import admin, closed, confirm, console, field, press, row
from tests.browser.looks import faint_texts, overflow, walk_by_tab

expect.set_options(timeout=PATIENCE)

OBJECTS, BYTES = 4, 50_000
ADMIN = f'[admin]\ntoken = "{TOKEN}"\nread_token = "{READ_TOKEN}"\n'


@pytest.fixture(scope="module")
def origin() -> Iterator[Origin]:
    """A store."""
    with Origin() as started:
        for number in range(OBJECTS):
            started.put(f"/data/warm/{number}", bytes([number]) * BYTES)
            started.put(f"/data/purged/{number}", bytes([number]) * BYTES)
        yield started


@pytest.fixture(scope="module")
def running(origin: Origin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway of it."""
    home = tmp_path_factory.mktemp("console")
    with gateway(Settings(origin.endpoint, home / "cache", extra=ADMIN), home) as ready:
        yield ready


def test_a_node_is_drained_and_comes_back(window: Any, running: Running) -> None:
    """Rule: the last READY node is not drained by mistake: the refusal is shown, and a box decides; Undrain ends it. The focus is
    then on the button that replaces the one that was pressed."""
    node = admin(running, "GET", "nodes").json["items"][0]["id"]
    page = console(window, "nodes").page
    press(page, f"Drain {node}")
    expect(page.get_by_role("dialog")).to_contain_text(f"{node} leaves the ring")
    confirm(page, "Drain")
    expect(page.locator("#action-error")).to_contain_text("is the only READY node")
    expect(page.locator("#action-error")).to_contain_text("larder-gateway nodes drain --force")
    field(page, "Even if it is the last READY node").check()
    confirm(page, "Drain")
    closed(page)
    press(page, f"Undrain {node}")
    confirm(page, "Undrain")
    closed(page)
    expect(page.get_by_role("button", name=f"Drain {node}", exact=True)).to_be_focused()
    actions = [entry["action"] for entry in admin(running, "GET", "audit?limit=2").json["items"]]
    assert actions == ["nodes.undrain", "nodes.drain"]


def test_a_warm_up_shows_its_progress_and_can_be_stopped(window: Any, running: Running, origin: Origin) -> None:
    """Rule: a warm-up is listed with its progress; cancelled it stops and says so; resumed it ends with everything loaded."""
    hang = origin.hang("/data/warm/2", times=10)
    page = console(window, "warmups").page
    press(page, "Warm")
    field(page, "Access key").fill("GWA")
    field(page, "Prefix").fill("s3://data/warm/")
    confirm(page, "Warm")
    closed(page)
    begun = row(page, "data/warm/")
    expect(begun).to_contain_text(f"of {OBJECTS}")
    press(page, "Cancel data/warm/")
    confirm(page, "Cancel the warm-up")
    expect(begun).to_contain_text("cancelled")
    origin.heal()
    hang.gate.open()
    press(page, "Resume data/warm/")
    confirm(page, "Resume")
    expect(begun).to_contain_text("done")
    expect(begun).to_contain_text(f"100\u00a0%: {OBJECTS} of {OBJECTS}")
    expect(page.get_by_role("button", name="Run again data/warm/", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Resume data/warm/", exact=True)).to_have_count(0)


def test_a_warm_up_of_nothing_says_so(window: Any, running: Running) -> None:
    """Rule: a prefix without objects, such as a misspelt one, does not look like a loaded one."""
    admin(running, "POST", "warmups", {"access_key_id": "GWA", "bucket": "data", "prefix": "warn/"})
    page = console(window, "warmups").page
    expect(row(page, "data/warn/")).to_contain_text("There was nothing to load: no object has this prefix.")


def test_a_warm_up_that_cannot_be_is_refused_at_its_field(window: Any, running: Running) -> None:
    """Rule: the gateway's words stand beside the access key that it does not know."""
    page = console(window, "warmups").page
    press(page, "Warm")
    field(page, "Access key").fill("nobody")
    field(page, "Prefix").fill("data")
    confirm(page, "Warm")
    expect(page.locator("#field-access_key_id-error")).to_contain_text("must be a valid key of this gateway")


def test_a_purge_shows_first_what_goes(window: Any, running: Running) -> None:
    """Rule: the preview counts objects and bytes and drops nothing; confirmed, they go, and the next read is a miss."""
    client = running.client()
    for number in range(OBJECTS):
        client.get_object(Bucket="data", Key=f"purged/{number}")["Body"].read()
    page = console(window, "warmups").page
    press(page, "Purge")
    field(page, "Prefix").fill("data/purged/")
    confirm(page, "Show what goes")
    expect(page.locator("#action-preview")).to_contain_text(f"{OBJECTS} objects, 200\u00a0kB, would be dropped")
    page.get_by_role("button", name="Cancel", exact=True).click()
    closed(page)
    assert cache_status(client.head_object(Bucket="data", Key="purged/0")) == "HIT"
    press(page, "Purge")
    field(page, "Prefix").fill("data/purged/")
    confirm(page, "Show what goes")
    confirm(page, "Purge")
    expect(page.locator("#action-result")).to_contain_text(f"{OBJECTS} objects, 200\u00a0kB, dropped")
    assert cache_status(client.get_object(Bucket="data", Key="purged/0")).startswith("MISS")


def test_a_row_of_an_object_is_about_that_object(window: Any, running: Running, origin: Origin) -> None:
    """Rule: the row of one object warms and purges it alone, not those whose keys begin with its own; the row follows its
    warm-up and then says that the object is cached."""
    for key in ("a", "ab"):
        origin.put(f"/data/rows/{key}", b"x" * BYTES)
    page = console(window, "objects/data/rows%2F").page
    rows = {
        key: page.get_by_role("row").filter(has=page.get_by_role("link", name=key, exact=True)) for key in ("a", "ab")
    }
    cells = {key: shown.locator("td[data-label=Cached]") for key, shown in rows.items()}
    expect(cells["a"]).to_have_text("no")
    press(page, "Warm rows/a")
    confirm(page, "Warm")
    expect(rows["a"].get_by_text("Loaded 50.0\u00a0kB of 50.0\u00a0kB")).to_be_visible()
    expect(cells["a"]).to_have_text("yes")
    expect(cells["ab"]).to_have_text("no")
    assert cache_status(running.client().get_object(Bucket="data", Key="rows/ab")).startswith("MISS")
    press(page, "Purge rows/a")
    confirm(page, "Show what goes")
    expect(page.locator("#action-preview")).to_contain_text("1 object, 50.0\u00a0kB, would be dropped from 1 node.")
    confirm(page, "Purge")
    page.get_by_role("button", name="Close").click()
    expect(cells["a"]).to_have_text("no")
    expect(cells["ab"]).to_have_text("yes")


def test_a_purge_counts_the_nodes_that_have_applied_it(window: Any) -> None:
    """Rule: a node that did not answer is named with the reason, and is not counted among the nodes that purged."""
    page = console(window, "warmups").page
    dead = {"node": "gw-2", "objects": 0, "bytes": 0, "failure": "it has been silent for 22 s"}
    nodes = [{"node": "gw-1", "objects": 3, "bytes": 300, "failure": ""}, dead]
    found = {
        "bucket": "data",
        "prefix": "",
        "dry_run": False,
        "objects": 3,
        "bytes": 300,
        "complete": False,
        "nodes": nodes,
    }
    page.route("**/-/admin/purge", lambda route: route.fulfill(json=found))
    press(page, "Purge")
    field(page, "Prefix").fill("data")
    confirm(page, "Show what goes")
    confirm(page, "Purge")
    expect(page.locator("#action-result")).to_contain_text("dropped from 1 node.")
    expect(page.locator("#action-result")).to_contain_text("gw-2: it has been silent for 22 s")


def test_a_warm_up_that_lost_objects_does_not_look_whole(window: Any) -> None:
    """Rule: the state of a warm-up that ended without some of its objects is marked, and the objects are named."""
    page = console(window, "warmups").page
    shown = {
        "id": "5f" * 16, "access_key_id": "GWA", "bucket": "data", "prefix": "lost/", "dataset": None, "profile": None,
        "state": "done", "node": "gw-1", "failure": "", "total": 2, "total_bytes": 9, "done": 2, "done_bytes": 0, "there": 0,
        "failed": 2, "examples": [{"key": "lost/1", "why": "a rule says cache = false"}],
        "created_at": "2026-03-02T14:30:00.000Z",
        "updated_at": "2026-03-02T14:30:00.000Z", "etag": '"17"',
    }  # fmt: skip
    page.route("**/-/admin/warmups*", lambda route: route.fulfill(json={"items": [shown], "next": None}))
    expect(row(page, "data/lost/").locator("td.fair")).to_have_text("done")
    expect(row(page, "data/lost/")).to_contain_text("2 objects not readable; lost/1: a rule says cache = false")


def test_space_of_a_dataset_is_decided(window: Any, running: Running, origin: Origin, tmp_path: Path) -> None:
    """Rule: the dialog begins with the override in force; pin and a quota are sent together, in the API's words."""
    images = stock(origin.s3, tmp_path, "images", bytes_of(3, 1000, "images"))
    images.register(running)
    page = console(window, "datasets").page
    press(page, "Space images")
    field(page, "Space").select_option("pin")
    field(page, "Quota").fill("much")
    confirm(page, "Change")
    expect(page.locator("#field-quota-error")).to_contain_text('must be a size such as "40GB"')
    field(page, "Quota").fill("1.5 MB")
    confirm(page, "Change")
    closed(page)
    override = admin(running, "GET", f"datasets/{images.id}").json["override"]
    assert (override["mode"], override["quota"]) == ("pin", 1_500_000)
    press(page, "Space images")
    expect(field(page, "Space")).to_have_value("pin")
    expect(field(page, "Quota")).to_have_value("1500KB")
    field(page, "Space").select_option("")
    field(page, "Quota").fill("")
    confirm(page, "Change")
    closed(page)
    override = admin(running, "GET", f"datasets/{images.id}").json["override"]
    assert (override["mode"], override["quota"]) == (None, None)


def test_results_pipelines_and_jobs_are_decided(window: Any, running: Running) -> None:
    """Rule: each row has its button, and the dialog sends the same request as the command line."""
    page = window().page
    Played(page)
    sent: list[tuple[str, str, Any]] = []

    def take(route: Route) -> None:
        request = route.request
        if request.method == "GET":
            found = {"mode": None, "quota": 40_000_000_000, "etag": '"3"'}
            pipeline = {"override": "", "pinned": None}
            route.fulfill(json=pipeline if "/pipelines/" in request.url else {"override": found})
            return
        sent.append((request.method, request.url.partition("/-/admin/")[2], request.post_data_json))
        route.fulfill(json={})

    for name in ("results", "pipelines", "jobs"):
        page.route(f"**/-/admin/{name}/**", take)
    page.goto("/-/#/pipelines")
    press(page, "Space 9f86d081884c")
    expect(field(page, "Quota")).to_have_value("40GB")
    field(page, "Space").select_option("never")
    confirm(page, "Change")
    closed(page)
    press(page, "Results of resnet50-17")
    field(page, "Store").select_option("never")
    confirm(page, "Change")
    closed(page)
    page.goto("/-/#/jobs")
    press(page, "Remove whisper-ft-2")
    expect(page.get_by_role("dialog")).to_contain_text("A running job registers again")
    confirm(page, "Remove")
    closed(page)
    assert sent == [
        ("PUT", "results/results%3A9f2c1a9b0d4e4f7ea1b2c3d4e5f60718/override", {"mode": "never", "quota": 40_000_000_000}),
        ("PUT", "pipelines/vision/resnet50-17/override", {"mode": "never"}),
        ("DELETE", "jobs/speech/whisper-ft-2", None),
    ]  # fmt: skip


def test_a_read_is_explained(window: Any, running: Running, origin: Origin) -> None:
    """Rule: misses are counted by reason, with a remedy; the object's explanation is open to viewers too."""
    origin.put("/data/explained/a", b"x")
    running.client().get_object(Bucket="data", Key="explained/a")["Body"].read()
    page = console(window, "explain", READ_TOKEN).page
    expect(row(page, "cold")).to_contain_text("Read it once, or warm up its prefix before it is needed.")
    press(page, "Explain")
    field(page, "Object").fill("data/explained/a")
    expect(page.locator("#field-access_key_id-list option[value=GWA]")).to_have_count(1)
    field(page, "Access key").fill("nobody")
    confirm(page, "Explain")
    expect(page.locator("#field-access_key_id-error")).to_contain_text("must be a valid key of this gateway")
    field(page, "Access key").fill("GWA")
    confirm(page, "Explain")
    expect(page.locator("#action-result")).to_contain_text("The next read of data/explained/a is expected to be HIT.")


def test_parts_of_an_object_are_explained(window: Any, running: Running, origin: Origin) -> None:
    """Rule: the explanation names the bytes of an object that are stored as they were read."""
    origin.put("/data/explained/parts", bytes(4 * 1024**2))
    with Client(running.endpoint) as client:
        assert client.get("/data/explained/parts", range="bytes=700000-899999").status == 206
    known = "explain?bucket=data&key=explained/parts&access_key_id=GWA"
    wait_until(lambda: admin(running, "GET", known).json["parts"] == 1, SOON, "the part")
    page = console(window, "explain", READ_TOKEN).page
    press(page, "Explain")
    for label, value in (("Object", "data/explained/parts"), ("Access key", "GWA")):
        field(page, label).fill(value)
    confirm(page, "Explain")
    expect(page.locator("#action-result")).to_contain_text("are stored as they were read: bytes 700000-899999.")


def test_a_read_of_a_stream_is_explained(window: Any, running: Running, origin: Origin) -> None:
    """Rule: an object of an access stream is explained with the stream and its pattern."""
    with Client(running.endpoint) as client:
        for number in range(WINDOW + 10):
            origin.put(f"/data/scanned/{number:03}", b"x")
            assert client.get(f"/data/scanned/{number:03}").status == 200
    known = "explain?bucket=data&key=scanned/000&access_key_id=GWA"
    wait_until(lambda: admin(running, "GET", known).json["pattern"] == "sequential", SOON, "its pattern")
    page = console(window, "explain", READ_TOKEN).page
    press(page, "Explain")
    for label, value in (("Object", "s3://data/scanned/000"), ("Access key", "GWA")):
        field(page, label).fill(value)
    confirm(page, "Explain")
    expected = "Its reads belong to the stream data/scanned/, whose pattern is sequential."
    expect(page.locator("#action-result")).to_contain_text(expected)


def test_a_profile_is_recorded_warmed_and_deleted(window: Any, running: Running) -> None:
    """Rule: Record starts a profile, Stop ends it, Warm replays it with the rights of its key, Delete removes it."""
    page = console(window, "profiles").page
    press(page, "Record")
    for label, text in (("Name", "nightly"), ("Access key", "GWA"), ("Prefix", "data/warm/")):
        field(page, label).fill(text)
    expect(field(page, "For")).to_have_value("1h")
    confirm(page, "Record")
    closed(page)
    assert get(running, "/data/warm/0").status == 200
    expect(row(page, "nightly")).to_contain_text("recording")
    expect(row(page, "nightly")).to_contain_text("50.0\u00a0kB")
    press(page, "Stop nightly")
    confirm(page, "Stop")
    closed(page)
    press(page, "Warm nightly")
    confirm(page, "Warm")
    closed(page)
    assert admin(running, "GET", "warmups").json["items"][0]["profile"] == "nightly"
    press(page, "Delete nightly")
    confirm(page, "Delete")
    closed(page)
    expect(row(page, "nightly")).to_have_count(0)


def test_caches_are_verified(window: Any, running: Running) -> None:
    """Rule: Verify starts on all nodes, and the list shows their progress and findings."""
    page = console(window, "verifications").page
    press(page, "Verify")
    confirm(page, "Verify")
    closed(page)
    done = page.get_by_role("row").filter(has_text="no defect")
    expect(done).to_contain_text("done")
    expect(done).to_contain_text("100\u00a0%")


def test_origins_are_managed(window: Any, running: Running) -> None:
    """Rule: each says whether nodes reach it; those of the catalog are created, changed and removed, the file's only shown."""
    assert get(running, "/data/warm/1").status == 200
    page = console(window, "origins").page
    expect(row(page, "default")).to_contain_text("answers")
    expect(row(page, "default").get_by_role("button")).to_have_count(0)
    press(page, "Create")
    field(page, "Name").fill("archive")
    field(page, "Endpoint").fill("http://127.0.0.1:1")
    confirm(page, "Create")
    closed(page)
    expect(row(page, "archive")).to_contain_text("us-east-1")
    expect(row(page, "archive")).to_contain_text("not asked yet")
    press(page, "Change archive")
    field(page, "Region").fill("eu-west-1")
    confirm(page, "Change")
    closed(page)
    expect(row(page, "archive")).to_contain_text("eu-west-1")
    press(page, "Remove archive")
    confirm(page, "Remove")
    closed(page)
    expect(row(page, "archive")).to_have_count(0)


def test_rows_of_a_long_list_are_found(window: Any, running: Running) -> None:
    """Rule: lists of ten rows or more have a filter; only matching rows stay, and an empty result is stated."""
    page = console(window, "tenants").page
    expect(page.get_by_role("table")).to_be_visible()
    expect(page.get_by_role("region", name="Tenants").get_by_label("Find")).to_be_hidden()
    for number in range(10):
        admin(running, "POST", "tenants", {"name": f"team-{number}", "description": f"floor {number}"})
    page.get_by_role("region", name="Tenants").get_by_label("Find").fill("FLOOR 7")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(row(page, "team-7")).to_be_visible()
    page.get_by_role("region", name="Tenants").get_by_label("Find").fill("nobody")
    expect(page.get_by_text("Nothing in this list has that text.")).to_be_visible()


def test_how_much_of_a_list_was_looked_through_is_said(window: Any, running: Running) -> None:
    """Rule: where a list goes on, the page says how many rows it looked through, not how many it found, and offers no more."""
    made = admin(running, "POST", "tenants", {"name": "looked-through"}).json
    shown = {"items": [{**made, "name": f"part-{number}"} for number in range(12)], "next": "more"}
    watched = console(window, "overview")
    watched.page.route("**/-/admin/tenants?*", lambda route: route.fulfill(json=shown))
    page = watched.page
    page.get_by_role("link", name="Tenants").click()
    listed = page.get_by_role("region", name="Tenants")
    listed.get_by_label("Find").fill("part-7")
    expect(listed.locator("tbody tr")).to_have_count(1)
    expect(page.get_by_text("Looked through the first 12; larder-gateway tenants lists all.")).to_be_visible()
    expect(listed.get_by_role("button", name="Show more")).to_be_hidden()


def test_a_viewer_sees_figures_and_no_buttons(window: Any, running: Running) -> None:
    """Rule: on the overview, too, a token that may only read is offered no change."""
    page = console(window, "overview", READ_TOKEN).page
    expect(page.locator("#nodes tbody tr")).to_have_count(1)
    expect(page.locator("#board .actions button")).to_have_count(0)


def test_the_list_of_warm_ups_suits_everyone(window: Any, running: Running) -> None:
    """Rule: on a phone the page does not scroll sideways, texts have contrast, and the keyboard reaches every button."""
    page = console(window, "warmups", viewport={"width": 360, "height": 740}).page
    body = {"access_key_id": "GWA", "bucket": "data", "prefix": "a-prefix-without-any-place-to-break-it/" * 4}
    admin(running, "POST", "warmups", body)
    # At its end another button takes the place of "Cancel".
    expect(page.get_by_role("button", name=f"Run again data/{body['prefix']}", exact=True)).to_be_visible()
    assert overflow(page) <= 0
    assert faint_texts(page) == []
    assert walk_by_tab(page) == (set(), [])


def test_the_second_of_two_operators_is_told_of_the_first(window: Any, running: Running) -> None:
    """Rule: a pin that was changed after its dialog was opened is not overwritten; the dialog says so, and shows it when opened
    again."""
    admin(running, "PUT", "streams/data%2Fshared%2F/override", {"mode": "pin", "bytes": 1_000_000})
    page = console(window, "streams").page
    press(page, "Space data/shared/")
    expect(field(page, "Bytes that stay")).to_have_value("1MB")
    admin(running, "PUT", "streams/data%2Fshared%2F/override", {"mode": "pin", "bytes": 5_000_000})
    field(page, "Bytes that stay").fill("7MB")
    confirm(page, "Change")
    expect(page.locator("#action-error")).to_contain_text("Somebody changed it after this dialog was opened")
    page.keyboard.press("Escape")
    closed(page)
    press(page, "Space data/shared/")
    expect(field(page, "Bytes that stay")).to_have_value("5MB")
    field(page, "Space").select_option("")
    confirm(page, "Change")
    closed(page)
    expect(page.locator("#streams")).not_to_contain_text("data/shared/")


def test_a_prefix_is_pinned_and_denied_space(window: Any, running: Running) -> None:
    """Rule: a prefix can be pinned before its first read, and shows its bytes; then denied space, and left to the plan. A pin
    without bytes is refused beside the field."""
    page = console(window, "streams").page
    press(page, "Space of a prefix")
    field(page, "Prefix").fill("data/val/")
    confirm(page, "Change")
    expect(page.locator("#action")).to_contain_text("is required to pin")
    field(page, "Bytes that stay").fill("40MB")
    confirm(page, "Change")
    closed(page)
    shown = page.locator("#streams tr", has_text="data/val/")
    expect(shown).to_contain_text("of 40.0\u00a0MB pinned")
    for mode in ("never", ""):
        press(page, "Space data/val/")
        field(page, "Space").select_option(mode)
        confirm(page, "Change")
        closed(page)
        if mode:
            expect(shown).to_contain_text("no space")
    expect(page.locator("#streams")).not_to_contain_text("data/val/")
    audited = admin(running, "GET", "audit?action=streams.override&limit=3").json["items"]
    modes = [(None, None), ("never", None), ("pin", 40_000_000)]
    assert [entry["after"] for entry in audited] == [{"mode": mode, "quota": quota} for mode, quota in modes]
