"""The fleet under a virtual clock: the policies that gateways run, with jobs, an origin and a cache that cost no time.

All decisions are made by the objects of ``gateway.policies``: which candidates of a batch are delivered (``batch.choose``), how a
dataset is cut (``datasets``), and all that the manager does (``manager.decide``: probing, allocation). The rest is modelled: a
job is a time per mini-batch and a loader in front of it, the origin is a bandwidth that is shared fairly, the cache is a set of
items. So a simulation says what the decisions are worth, and nothing about what code costs.
"""
