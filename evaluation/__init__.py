"""Whole training runs on a fleet and in the simulator, compared: ``make evaluate`` writes docs/evaluation.

Real runs have real gateways, a real Redis, the real loader, and an origin of limited bandwidth; what a GPU would do is a pause.
Compared is only what ran side by side, as ratios: absolute times are those of the machine.
"""
