"""Purges: every node drops a cached object, or all below a prefix, at once or when it is back."""

from gateway.feature import Command, Endpoints, Feature

FEATURE = Feature(
    commands=(Command(302, "purge", "gateway.operate.purge.command", "drop a cached object, or all below a prefix"),),
    endpoints=(Endpoints(210, "gateway.operate.purge.api"),),
    wiring="gateway.operate.purge.wiring",
    follows=True,
)
