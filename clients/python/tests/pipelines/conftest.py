"""Property tests whose outcome does not depend on how fast the machine is."""

from hypothesis import HealthCheck, settings

settings.register_profile("planner", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("planner")
