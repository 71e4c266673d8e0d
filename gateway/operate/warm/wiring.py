"""Warm-ups and profiles in one worker."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.api.v1.batch import check_rights
from gateway.engine.operations.warm_objects import WarmObjects
from gateway.fleet.jobs.leadership import Leadership
from gateway.operate.ground import BackgroundLoop, CatalogGround, Following, Ground, RunningFeature
from gateway.operate.warm.permitted import PermittedLoads
from gateway.operate.warm.profiles import Profiles
from gateway.operate.warm.recording import Recorder
from gateway.operate.warm.runner import WarmupRunner
from gateway.operate.warm.warm_dataset import DatasetAccess
from gateway.operate.warm.warmups import Warmups, warmup_factory
from gateway.policies.items.datasets import WHOLE
from gateway.policies.streams.profile import ProfileRecording

_LEASE = 10.0
"""Seconds after which another worker takes over the warm-ups of a dead one."""


def start(ground: Ground) -> RunningFeature:
    """Run warm-ups in the worker that has the lease, if there is a catalog."""
    engine, membership = ground.engine, ground.membership
    services = engine.services
    datasets = DatasetAccess(ground.registrations.find, check_rights, ground.planned, engine.batches)
    profiles = Profiles(ground.catalog, ground.settings.cache.block_size)
    loads = PermittedLoads(WarmObjects(engine, services.fleet), lambda: services.rules)

    def capacity() -> int:
        return int(WHOLE * ground.planned.capacity)

    make = warmup_factory(ground.find, ground.listings, loads, datasets, profiles.find, capacity)
    warmups = Warmups(ground.catalog, make)
    services_of_feature = {"warmups": warmups, "profiles": profiles}
    if not ground.has_catalog:
        return RunningFeature(services_of_feature)
    # Nodes with separate catalogs have separate warm-ups.
    whose = f"{ground.me}:" if "{cache.dir}" in ground.settings.database.url else ""
    lease = Leadership(ground.redis, f"{membership.prefix}warmups:{whose}", ground.worker, _LEASE)
    runner = WarmupRunner(warmups, lease, ground.worker, lambda: not membership.conflict)
    return RunningFeature(services_of_feature, (BackgroundLoop(runner.run, runner.stop),))


def follow(ground: CatalogGround) -> Following:
    """Record the reads of profiles, if reads are observed."""
    catalog, services = ground.catalog, ground.services
    if not ground.effective().streams.enabled:
        return Following()

    def known() -> Sequence[ProfileRecording]:
        return () if catalog.last is None else catalog.last.recordings

    recorder = Recorder(known, Profiles(catalog, services.block_size).save, lambda: services.rules, services.block_size)
    return Following(loop=BackgroundLoop(recorder.run, recorder.stop), reads=recorder.hear)
