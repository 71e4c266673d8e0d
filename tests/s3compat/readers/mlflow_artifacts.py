# /// script
# dependencies = ["mlflow-skinny==3.17.2", "boto3==1.44.8"]
#
# [tool.larder]
# name = "mlflow"
# ///
"""MLflow: a folder of artifacts, over boto3."""

import os

from mlflow.store.artifact.s3_artifact_repo import S3ArtifactRepository
from place import ENDPOINT, SCRATCH, URL, content, run, version_of_content

os.environ["MLFLOW_S3_ENDPOINT_URL"] = ENDPOINT
SIZES = {"small": 1000, "large": 30_000_000}


def write(version):
    """Log the artifacts."""
    for name, size in SIZES.items():
        (SCRATCH / name).write_bytes(content(version, size))
        S3ArtifactRepository(URL).log_artifact(str(SCRATCH / name), "model")


def read():
    """Download them."""
    (SCRATCH / "in").mkdir()
    S3ArtifactRepository(URL).download_artifacts("model", str(SCRATCH / "in"))
    (version,) = {version_of_content((SCRATCH / "in/model" / name).read_bytes(), size) for name, size in SIZES.items()}
    return version


run(write, read)
