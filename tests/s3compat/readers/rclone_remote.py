"""The remote of rclone that its scripts use."""

import os
import sys
from pathlib import Path

from place import ENDPOINT, REGION

PROGRAM = Path(sys.executable).parent / "rclone"
VARIABLES = {
    **os.environ,
    "RCLONE_CONFIG": "/dev/null",
    "RCLONE_CONFIG_STORE_TYPE": "s3",
    "RCLONE_CONFIG_STORE_PROVIDER": "Other",
    "RCLONE_CONFIG_STORE_ENV_AUTH": "true",
    "RCLONE_CONFIG_STORE_ENDPOINT": ENDPOINT,
    "RCLONE_CONFIG_STORE_REGION": REGION,
}
