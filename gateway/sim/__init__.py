"""The fleet under a virtual clock: the policies of real gateways, with simulated jobs, origin and cache.

The objects of ``gateway.policies`` make all decisions: which candidates of a batch are delivered (``batch.choose``), how a
dataset is cut (``datasets``), and everything that the manager does (``manager.decide``: probing, allocation). The rest is
modelled: a job is a time per mini-batch with a loader in front, the origin is a fairly shared bandwidth, the cache is a set of
items. So a simulation shows the value of decisions, and says nothing about the cost of code.
"""
