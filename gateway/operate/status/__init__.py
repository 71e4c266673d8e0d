"""Status: the fleet's state and its problems, at this moment and over time."""

from gateway.feature import Command, Endpoints, Feature

FEATURE = Feature(
    commands=(
        Command(100, "status", "gateway.operate.status.command", "the fleet's current traffic and problems"),
        Command(
            101,
            "problems",
            "gateway.operate.status.problems_command",
            "what is wrong, and what was; mute a problem",
            "list",
        ),
        Command(103, "top", "gateway.operate.status.top_command", "the fleet's traffic, space and problems, live"),
    ),
    endpoints=(
        Endpoints(80, "gateway.operate.status.api"),
        Endpoints(90, "gateway.operate.status.problems_api"),
        Endpoints(110, "gateway.operate.status.trends_api"),
    ),
    wiring="gateway.operate.status.wiring",
)
