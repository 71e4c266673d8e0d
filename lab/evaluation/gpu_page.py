"""The page of ``lab.evaluation.gpu``, from its results: ``python -m lab.evaluation.gpu_page`` writes it again."""

from __future__ import annotations

import json
from typing import Any

from gateway.sim.figures import pyplot
from lab.evaluation.pages import FOLDER, picture, table, write

RESULTS = FOLDER / "gpu.json"
SYNTHETIC = "synthetic data on the GPU"
FILES = "local files"
BUCKET = "the bucket, by boto3"
COLD, WARM = "S3 through Larder, cold cache", "S3 through Larder, warm cache"
EXACT = "loader, everything cached, exact order"
STATIC = "loader, half of the data cached (static)"
FIFTH = "loader, a fifth of the data cached"
PLAIN = "S3 through Larder, a fifth of the data cached"
_COLOURS = {
    SYNTHETIC: "#444444",
    FILES: "#888888",
    BUCKET: "#c0732a",
    COLD: "#3b78a8",
    WARM: "#3b78a8",
    PLAIN: "#3b78a8",
}
_OURS = "#1b7f5c"

Side = dict[str, Any]
"""An outcome of ``lab.evaluation.gpu``, as JSON."""


def rows_of(sides: list[Side], size: float) -> tuple[list[str], list[list[str]]]:
    """The columns and rows of a table of sides with equally many jobs, the ceiling first; ``size`` is that of the data."""
    columns = ["fed by", "samples/s", "of the ceiling", "steps wait", "GPU busy", "origin reads per epoch and job"]
    rows = [
        [
            side["name"],
            f"{side['rate']:.0f}",
            f"{side['rate'] / sides[0]['rate']:.0%}",
            f"{side['idle']:.0%}",
            f"{side['busy']:.0%}" if side["busy"] >= 0 else "not known",
            f"{side['reads'] * size / 1e9:.2f} GB",
        ]
        for side in sides
    ]
    return columns, rows


def page(found: dict[str, Any]) -> None:
    """Write the page."""
    size, scale, jobs = found["size"], found["scale"], found["scale"]["jobs"]
    alone, shared = ([side for side in found["sides"] if side["jobs"] == many] for many in (1, jobs))
    write(
        "gpu",
        "A GPU fed from a slow bucket",
        found["where"],
        *((version,) if (version := found.get("version")) else ()),
        _setup(scale, size, found["decoded"]),
        "## One job",
        table(*rows_of(alone, size)),
        _alone({side["name"]: side for side in alone}),
        f"## {jobs} jobs on one GPU and one dataset",
        table(*rows_of(shared, size)),
        _shared({side["name"]: side for side in shared}, scale),
        _plot(alone, shared),
        "## What this does not show",
        _limits(scale),
        *((remark,) if (remark := found.get("remark")) else ()),
    )


def _setup(scale: dict[str, Any], size: int, decoded: float) -> str:
    mean = size / scale["items"]
    return (
        f"A training job reads {scale['items']} JPEGs of {scale['side']} x {scale['side']} pixels, {mean / 1024:.0f} KiB each "
        f"and {size / 1e9:.2f} GB together, out of a bucket that sends {scale['bandwidth'] / 1e6:g} MB/s to all its readers, "
        f"{1000 * scale['latency']:g} ms after each request: {scale['bandwidth'] / mean:.0f} pictures per second at most.\n\n"
        "Each job is a process with torchvision's ResNet-50: bf16 by autocast, channels_last, SGD, mini-batches of "
        f"{scale['batch']}, without torch.compile. {scale['loaders']} `DataLoader` workers, shared among the jobs, decode with "
        f"Pillow, cut out {scale['crop']} x {scale['crop']} pixels and mirror half of the pictures; memory is pinned, and the "
        f"next mini-batch is requested while the GPU computes. The gateway has {scale['gateway']} worker processes; the bucket "
        "is the object store of the tests; everything shares the machine. So that storage decides, pictures are decoded at half "
        f"their size: as many processes decode {decoded:.0f} per second.\n\n"
        "*The ceiling* is the same loop with a mini-batch that stays on the GPU. *Steps wait*: the share of the time, by CUDA "
        "events, in which a job had given the GPU nothing to do. *GPU busy*: the share in which some kernel ran, as the driver "
        "says. *boto3* has eight requests in flight in each worker."
    )


def _alone(sides: dict[str, Side]) -> str:
    def times(one: str, other: str) -> str:
        return f"{sides[one]['rate'] / sides[other]['rate']:.2f}"

    return "\n".join(
        [
            "Whole epochs, with empty queues at first.",
            "",
            f"- The bucket alone keeps the GPU at {sides[BUCKET]['rate'] / sides[SYNTHETIC]['rate']:.0%} of what it can do.",
            f"- **With everything cached, the loader in its exact order is as fast as local files** ({times(EXACT, FILES)} "
            "times). What both miss to the ceiling is mostly the start of epochs.",
            f"- Half of the data cached, by the mode `static`: {times(STATIC, BUCKET)} times the bucket.",
            f"- **A fifth of the data cached does not help one job alone: {times(FIFTH, BUCKET)} times the bucket.**",
            f"- A first epoch of plain S3 reads is as fast as from the bucket ({times(COLD, BUCKET)} times). With a warm cache "
            f"boto3 gets {times(WARM, FILES)} times what local files give: it takes CPU from the workers that decode.",
        ]
    )


def _shared(sides: dict[str, Side], scale: dict[str, Any]) -> str:
    of = {name: side["rate"] for name, side in sides.items()}
    return "\n".join(
        [
            f"{scale['limit'] - scale['skipped']:g} s of each side, after {scale['skipped']:g} s that do not count; caches are "
            "empty at first.",
            "",
            f"- **With a cache of a fifth of the data the jobs together train {of[FIFTH] / of[BUCKET]:.2f} times as fast as from "
            f"the bucket, at {of[FIFTH] / of[SYNTHETIC]:.0%} of the ceiling.** They share reads.",
            f"- The same cache by plain S3 reads gives {of[PLAIN] / of[BUCKET]:.2f} times the bucket.",
            f"- There are {sides[FIFTH]['reads']:.2f} origin reads per sample; {1 / scale['jobs']:.2f} would be one for all "
            "jobs. No job ended its first epoch, so what was loaded ahead weighs much.",
        ]
    )


def _limits(scale: dict[str, Any]) -> str:
    return "\n".join(
        [
            "- A real network, several GPUs or machines, an SSD under pressure: all goes over loopback, from memory.",
            "- Decoding at full size: there the cores may decide.",
            "- [Accuracy](convnet.md): pictures are noise.",
            f"- Long epochs: one takes {scale['items']} samples, some seconds.",
            "- Spread: each side ran once.",
        ]
    )


def _plot(alone: list[Side], shared: list[Side]) -> str:
    figure, (left, right) = pyplot().subplots(1, 2, figsize=(11, 4.2), width_ratios=(3, 2))
    bars = [*alone, *shared]
    names = [f"{side['name']}" for side in bars]
    places = [*range(len(alone)), *range(len(alone) + 1, len(bars) + 1)]
    left.barh(places, [side["rate"] for side in bars], color=[_COLOURS.get(name, _OURS) for name in names])
    left.set_yticks(places, names, fontsize=7)
    left.invert_yaxis()
    left.set_xlabel(f"samples per second (above: one job, below: {shared[0]['jobs']})")
    for side in shared:
        colour = _COLOURS.get(side["name"], _OURS)
        right.plot(range(1, len(side["course"]) + 1), side["course"], color=colour, linewidth=1.2)
    right.set_xlabel(f"seconds, {shared[0]['jobs']} jobs; colours as on the left")
    right.set_ylabel("samples in each second")
    right.set_ylim(bottom=0)
    return picture("gpu", figure)


if __name__ == "__main__":
    page(json.loads(RESULTS.read_text()))
