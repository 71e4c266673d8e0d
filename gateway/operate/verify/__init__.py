"""Verifications: nodes compare their cached files with their digests."""

from gateway.feature import Command, Endpoints, Feature

FEATURE = Feature(
    commands=(
        Command(303, "verify", "gateway.operate.verify.command", "compare cached files with their digests"),
    ),
    endpoints=(Endpoints(220, "gateway.operate.verify.api"),),
    wiring="gateway.operate.verify.wiring",
)  # fmt: skip
