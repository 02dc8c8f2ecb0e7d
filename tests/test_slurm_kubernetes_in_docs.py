"""What the page on Slurm and Kubernetes shows can be read by what it is meant for, as far as that is known here."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from attnlab.cli import run

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "slurm-kubernetes.md").read_text(encoding="utf-8")


def block(language):
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return found


@pytest.fixture
def job():
    return yaml.safe_load(block("yaml"))


def test_the_manifest_is_a_job_of_kuberay(job):
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert job["metadata"]["name"]
    assert set(job["spec"]) == {
        "entrypoint",
        "shutdownAfterJobFinishes",
        "ttlSecondsAfterFinished",
        "backoffLimit",
        "rayClusterSpec",
    }
    cluster = job["spec"]["rayClusterSpec"]
    assert set(cluster) == {"rayVersion", "headGroupSpec", "workerGroupSpecs"}
    assert set(cluster["headGroupSpec"]) == {"rayStartParams", "template"}
    for group in cluster["workerGroupSpecs"]:
        assert set(group) == {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    params = [
        cluster["headGroupSpec"]["rayStartParams"],
        *(one["rayStartParams"] for one in cluster["workerGroupSpecs"]),
    ]
    assert all(isinstance(value, str) for one in params for value in one.values())


def test_every_pod_has_the_same_image_resources_and_the_folder_of_the_study(job):
    cluster = job["spec"]["rayClusterSpec"]
    pods = [group["template"]["spec"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]
    containers = [container for pod in pods for container in pod["containers"]]
    assert len({container["image"] for container in containers}) == 1
    for pod in pods:
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in pod["containers"]:
            assert container["resources"]["requests"] == container["resources"]["limits"]
            assert {"cpu", "memory"} <= container["resources"]["limits"].keys()
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    words = shlex.split(job["spec"]["entrypoint"])
    folder = words[words.index("--out") + 1]
    assert all(folder.startswith(one["mountPath"]) for container in containers for one in container["volumeMounts"])


def test_what_is_run_is_a_command_of_the_lab(job):
    known = {f"--{name}" for name in run.run.__kwdefaults__}
    script = block("bash")
    for command in (job["spec"]["entrypoint"], script[script.index("attnlab run") :].splitlines()[0]):
        words = shlex.split(command)
        assert words[:2] == ["attnlab", "run"]
        assert {word for word in words if word.startswith("--")} <= known
        assert words[words.index("--on") + 1] == "auto"


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_the_script_is_one_that_a_shell_reads():
    subprocess.run(["bash", "-n"], input=block("bash"), text=True, check=True)


def test_ray_knows_the_command_and_its_options():
    scripts = pytest.importorskip("ray.scripts.symmetric_run")
    start = pytest.importorskip("ray.scripts.scripts").start
    script = block("bash")
    line = script[script.index("ray symmetric-run") : script.index("-- \\")]
    known = {option for command in (scripts.symmetric_run, start) for one in command.params for option in one.opts}
    assert set(re.findall(r"--[a-z-]+", line)) <= known
