"""The object browser: what is in a bucket, page by page, and what the next read of each object is expected to be."""

from gateway.feature import Endpoints, Feature

FEATURE = Feature(
    endpoints=(Endpoints(235, "gateway.operate.browse.api"),),
    wiring="gateway.operate.browse.wiring",
)
