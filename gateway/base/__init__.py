"""The base: configuration, metrics, logs, tasks and tracing, which every other package may use."""
