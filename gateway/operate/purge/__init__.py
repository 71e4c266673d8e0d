"""Purges: every node drops cached objects below a prefix, at once or when it is back."""

from gateway.feature import Command, Endpoints, Feature

FEATURE = Feature(
    commands=(Command(302, "purge", "gateway.operate.purge.command", "drop cached objects below a prefix"),),
    endpoints=(Endpoints(210, "gateway.operate.purge.api"),),
    wiring="gateway.operate.purge.wiring",
    follows=True,
)
