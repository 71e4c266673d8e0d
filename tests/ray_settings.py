"""The environment of programs with Ray: nothing is sent to its makers, and no deadline of its own ends a slow start."""

ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # a process that asks a cloud whether it takes the machine away
    "RAY_prestart_worker_first_driver": "0",  # processes for tasks, beside those that actors start
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # all addresses are 127.0.0.1; Ray would take another one of this machine
    # The tests have deadlines; these are as long. By default they are 30 to 60 seconds, in which a busy machine starts no Ray.
    "RAY_gcs_server_port_wait_time_s": "400",
    "RAY_gcs_server_request_timeout_seconds": "400",
    "RAY_raylet_start_wait_time_s": "400",
    "RAY_worker_register_timeout_seconds": "400",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "400",
}
