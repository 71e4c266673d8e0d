"""Pipelines: from the items of a dataset to batches, in input workers; made by `larder.pipeline`."""

from larder.pipelines.building import Pipeline, PipelineOptions, pipeline

__all__ = ["Pipeline", "PipelineOptions", "pipeline"]
