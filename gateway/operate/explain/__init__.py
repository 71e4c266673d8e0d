"""Explanations: the reason why a read is a hit or not, and the change that makes it one."""

from gateway.feature import Command, Endpoints, Feature

FEATURE = Feature(
    commands=(
        Command(105, "explain", "gateway.operate.explain.command", "why a read is a hit or not, and what to change"),
    ),
    endpoints=(Endpoints(230, "gateway.operate.explain.api"),),
    wiring="gateway.operate.explain.wiring",
)
