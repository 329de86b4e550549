"""The recipes for clusters are at least well-formed, and name options that exist."""

import ast
import subprocess
from pathlib import Path

import pytest

CLUSTER = Path(__file__).parent.parent / "examples" / "cluster"


def test_the_batch_script_is_shell():
    subprocess.run(["bash", "-n", CLUSTER / "slurm.sh"], check=True)


def test_the_manifest_asks_for_a_training():
    yaml = pytest.importorskip("yaml", reason="needs PyYAML")
    job = yaml.safe_load((CLUSTER / "kubernetes.yaml").read_text())
    worker = job["spec"]["pytorchReplicaSpecs"]["Worker"]
    assert worker["replicas"] == job["spec"]["elasticPolicy"]["maxReplicas"]
    (container,) = worker["template"]["spec"]["containers"]
    assert container["command"][:4] == ["torchrun", "-m", "crossbatch", "train"]


def test_the_script_for_ray_is_python():
    ast.parse((CLUSTER / "ray_train.py").read_text())
