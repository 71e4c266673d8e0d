"""Whole training runs on a fleet and in the simulator, compared: ``make evaluate`` writes docs/evaluation.

Real runs have real gateways, a real Redis, the real loader, and an origin of limited bandwidth; a pause stands for the GPU's
work. Only runs side by side are compared, as ratios, because absolute times depend on the machine.
"""
