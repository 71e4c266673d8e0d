"""Pictures of every page of the dashboard at three widths, in both schemes: ``python -m tests.browser.sheets [FOLDER]``.

Lists are those of a fleet of three that has served clients; the overview and the pages of its things show the
figures of the tests. Each scheme is one picture of all pages (``pages-light.jpg``, ``pages-dark.jpg``). A second folder,
if given, gets every page at its full length.
"""

from __future__ import annotations

import base64
import sys
import tempfile
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, Page

from rig.world import content
from tests.admin.operations_world import TOKEN, Zone, post, zone
from tests.browser import figures
from tests.browser.chromium import Played, started
from tests.browser.console import sign_in
from tests.browser.pictures import IMAGES

BOARD = ("overview", "problems", "traffic", "jobs", "datasets", "pipelines", "streams", "nodes")
"""Pages that show the overview."""
PAGES = (
    *BOARD, "jobs/vision/vit-large-sweep-04", "nodes/gw-1", "explain", "profiles", "objects", "warmups", "rules", "origins",
    "verifications", "credentials", "tenants", "tokens", "audit",
)  # fmt: skip
SIZES = ((390, 844), (768, 1024), (1440, 900))
"""Windows: a phone, a tablet, a desk; pixels."""
_SCALE = 0.4
"""Of a window in the picture of all pages."""
_QUALITY = 72
"""Of JPEG, in percent."""
RULES = (
    {"match": "bucket/train/**", "freshness": "immutable"},
    {"match": "bucket/tmp/**", "cache": False},
)


def load(world: Zone) -> None:
    """Records in every list, and reads of all kinds."""
    first = world.nodes[0]
    for name, description in (("vision", "the vision team"), ("speech", "transcripts and audio"), ("ops", "")):
        post(first, "/tenants", {"name": name, "description": description, "requests_per_second": 2000}, 201)
    for number in range(6):
        key = {
            "access_key_id": f"nightly-{number}",
            "tenant": ("vision", "speech")[number % 2],
            "allow": ["bucket/train/**"],
        }
        post(first, "/credentials", key, 201)
    post(first, "/credentials/nightly-3/revoke")
    for name, role in (("grafana", "viewer"), ("night-shift", "operator")):
        post(first, "/tokens", {"name": name, "role": role}, 201)
    post(first, "/origins", {"name": "archive", "endpoint": "http://127.0.0.1:9"}, 201)
    for number in range(24):
        world.origin.put(f"/bucket/train/{number}.jpg", content(50_000, number))
    world.origin.put("/bucket/tmp/scratch", b"x")
    below = {"access_key_id": "GWA", "bucket": "bucket", "prefix": "train/"}
    post(first, "/profiles", {"name": "nightly", **below}, 201)
    for node in range(len(world.nodes)):
        world.read(node, "/bucket/tmp/scratch")
        for number in range(24):
            world.read(node, f"/bucket/train/{number}.jpg")
    for prefix in ("train/", "nothing/"):
        post(first, "/warmups", {**below, "prefix": prefix}, 202)
    post(first, "/verifications", status=202)
    world.heard()


def played(name: str) -> bool:
    """Whether a page shows the figures of the tests, as the overview does and the pages of single things do."""
    return name in BOARD or "/" in name


def shown(page: Page, name: str) -> None:
    """Open a page of the dashboard and wait until it is complete."""
    page.goto(f"/-/#/{name}")
    if not played(name):
        sign_in(page, TOKEN)
        page.locator("#place tbody tr").first.wait_for()
    elif name == "overview" or "/" in name:
        page.locator("path.line:visible").first.wait_for()
    else:
        page.locator(f"[data-page={name}]").wait_for()


def sheet(browser: Browser, world: Zone, to: Path, scheme: Literal["light", "dark"], each: Path | None = None) -> None:
    """One picture of all pages in a scheme."""
    rows = dict.fromkeys(PAGES, "")
    for width, height in SIZES:
        context = browser.new_context(
            base_url=world.nodes[0].console,
            viewport={"width": width, "height": height},
            color_scheme=scheme,
            timezone_id="UTC",
        )
        for name in PAGES:
            page = context.new_page()
            if played(name):
                page.clock.set_fixed_time(figures.NOW)
                Played(page)
            shown(page, name)
            if each is not None:
                page.screenshot(path=each / f"{name.replace('/', '-')}-{width}-{scheme}.png", full_page=True)
            data = base64.b64encode(page.screenshot()).decode()
            rows[name] += f'<img src="data:image/png;base64,{data}" width="{_SCALE * width:.0f}">'
            page.close()
        context.close()
    page = browser.new_page(viewport={"width": round(_SCALE * sum(width for width, _ in SIZES)) + 80, "height": 100})
    style = "body{margin:20px;background:#8a8f8d}div{display:flex;gap:20px;align-items:start;margin-bottom:20px}"
    page.set_content(f"<style>{style}</style>{''.join(f'<div>{row}</div>' for row in rows.values())}")
    page.screenshot(path=to, full_page=True, type="jpeg", quality=_QUALITY)
    page.close()


def make(folder: Path, each: Path | None = None) -> None:
    """Start a fleet and make both pictures of it."""
    with tempfile.TemporaryDirectory() as scratch, started() as browser, zone(Path(scratch), 3, rules=RULES) as world:
        load(world)
        for scheme in ("light", "dark"):
            sheet(browser, world, folder / f"pages-{scheme}.jpg", scheme, each)  # type: ignore[arg-type]


if __name__ == "__main__":
    make(*(Path(name) for name in sys.argv[1:]) if len(sys.argv) > 1 else (IMAGES,))
