"""Imports matplotlib, which is needed only for pictures, and may be missing."""

from __future__ import annotations

from typing import Any

from gateway.model.errors import LarderError


class PlotsUnavailable(LarderError):
    """matplotlib is not installed."""


def pyplot() -> Any:
    """matplotlib, drawing into files.

    Raises:
        PlotsUnavailable: it is not installed; the message says how to get it.
    """
    try:
        import matplotlib
        from matplotlib import pyplot as module
    except ImportError as error:
        raise PlotsUnavailable("no plots: matplotlib is not installed; pip install 'larder-gateway[plots]'") from error
    matplotlib.use("Agg")
    return module
