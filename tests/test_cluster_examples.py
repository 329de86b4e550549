"""The recipes for clusters are at least well-formed, and name options that exist."""

import ast
import json
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from crossbatch.cli import app

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


def test_the_nightly_job_is_three_commands_that_exist(tmp_path):
    yaml = pytest.importorskip("yaml", reason="needs PyYAML")
    job = yaml.safe_load((CLUSTER / "daily.yaml").read_text())
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    shell, options, script = container["command"]
    (tmp_path / "crossbatch").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "crossbatch").chmod(0o755)
    ran = subprocess.run(
        [shell, options, script],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    commands = [line.split() for line in ran.stdout.splitlines()]
    assert [words[0] for words in commands] == ["prepare", "train", "export"]
    for words in commands:
        shown = CliRunner().invoke(app, [words[0], "--help"], env={"COLUMNS": "200"}).output
        known = set(re.findall(r"--[a-z-]+", shown))
        assert {word for word in words if word.startswith("--")} <= known


def instructions():
    """The instructions of the Dockerfile as pairs of a word and the rest."""
    text = (CLUSTER.parents[1] / "Dockerfile").read_text()
    lines = re.sub(r"\\\n", " ", re.sub(r"(?m)^#.*\n", "", text)).splitlines()
    return [tuple(line.split(maxsplit=1)) for line in lines if line.strip()]


def known_options(command):
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).output
    return set(re.findall(r"--[a-z-]+", shown))


def test_the_image_serves_without_root_by_options_that_exist():
    words = dict(instructions())  # the last of each kind counts
    assert int(words["USER"]) > 0
    assert json.loads(words["ENTRYPOINT"]) == ["crossbatch"]
    command, _, *options = json.loads(words["CMD"])
    assert {word for word in options if word.startswith("--")} <= known_options(command)
    names = [rest.split()[:-1] for word, rest in instructions() if word == "COPY"]
    copied = {name for part in names for name in part if not name.startswith("-")}
    copied -= {"/opt/crossbatch"}
    root = CLUSTER.parents[1]
    assert all((root / name).exists() for name in copied)
    ignored = (root / ".dockerignore").read_text().splitlines()
    assert copied == {line[1:] for line in ignored if line.startswith("!")}


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_the_health_check_follows_the_server(status, code):
    class Health(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status if self.path == "/health" else 404)
            self.end_headers()

    _, check = dict(instructions())["HEALTHCHECK"].split("CMD ")
    program, option, text = json.loads(check)
    with HTTPServer(("127.0.0.1", 0), Health) as server:
        threading.Thread(target=server.handle_request).start()
        text = text.replace(":8000/", f":{server.server_port}/")
        done = subprocess.run([sys.executable, option, text], capture_output=True, check=False)
    assert program == "python"
    assert done.returncode == code


def test_the_deployment_uses_the_image_and_options_that_exist():
    yaml = pytest.importorskip("yaml", reason="needs PyYAML")
    deployment, service = yaml.safe_load_all((CLUSTER / "serve.yaml").read_text())
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert container["image"] == "crossbatch:latest"
    command, _, *options = container["args"]
    assert {word for word in options if word.startswith("--")} <= known_options(command)
    assert service["spec"]["selector"] == pod["metadata"]["labels"]
    port = container["ports"][0]["containerPort"]
    assert service["spec"]["ports"][0]["targetPort"] == port
    assert container["readinessProbe"]["httpGet"] == {"path": "/health", "port": port}
