"""The manifests of docs/clusters.md."""

import os

import pytest
import yaml

from sebulba.config.loading import load_config
from sebulba.config.schema import DistributedConfig
from sebulba.errors import ConfigError
from sebulba.hosts import connection
from tests.docs.blocks import ROOT, blocks_of

NUM_HOSTS = 4
FINAL = [2, 4, 6, 7]
AUTO = DistributedConfig(mode="auto")


def documents(name):
    (block,) = [each for each in blocks_of(ROOT / "docs" / "clusters.md") if each.file_name == name]
    return list(yaml.safe_load_all(block.text))


def jobs():
    """Return the Job of each manifest; that of the JobSet as the controller creates it."""
    _, job = documents("job.yaml")
    (jobset,) = documents("jobset.yaml")
    template = jobset["spec"]["replicatedJobs"][0]["template"]
    created = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "sebulba-host-0"}}
    return {"job.yaml": job, "jobset.yaml": {**created, **template}}


@pytest.fixture
def pod(monkeypatch):
    """Set the variables of a pod."""

    def set_variables(**variables):
        for name in [*os.environ]:
            if name.startswith(("JAX_COORDINATOR", "JAX_NUM_P", "JAX_PROCESS", "JOB_")):
                monkeypatch.delenv(name)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_variables


@pytest.mark.parametrize(
    ("name", "address"),
    [("job.yaml", "sebulba-0.sebulba:8476"), ("jobset.yaml", "sebulba-host-0-0.sebulba:8476")],
)
def test_auto_finds_the_place_of_every_pod(name, address, pod):
    job = jobs()[name]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    variables = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    assert job["completions"] == job["parallelism"] == NUM_HOSTS
    assert load_config(None, container["args"]).distributed.effective_mode == "auto"
    for number in range(job["completions"]):
        pod(JOB_COMPLETION_INDEX=str(number), **variables)
        assert connection._place(AUTO) == (address, NUM_HOSTS, number)


@pytest.mark.parametrize("name", ["job.yaml", "jobset.yaml"])
def test_codes_that_would_recur_end_the_job(name):
    job = jobs()[name]["spec"]
    rule = job["podFailurePolicy"]["rules"][0]
    assert (rule["action"], rule["onExitCodes"]) == (
        "FailJob",
        {"operator": "In", "values": FINAL},
    )
    assert job["template"]["spec"]["restartPolicy"] == "Never"


@pytest.mark.parametrize(
    ("address", "count", "number"),
    [("here", "4", "0"), ("here:1", "four", "0"), ("here:1", "4", "4"), ("here:1", "4", "")],
)
def test_wrong_variables_are_an_error(address, count, number, pod):
    pod(JAX_COORDINATOR_ADDRESS=address, JAX_NUM_PROCESSES=count, JAX_PROCESS_ID=number)
    with pytest.raises(ConfigError, match=f"expected host:port .*, got {address!r}, {number!r}"):
        connection._place(AUTO)


@pytest.mark.slow
def test_the_manifests_match_the_schema_of_kubernetes():
    validate = pytest.importorskip("kubernetes_validate").validate
    service, _ = documents("job.yaml")
    for manifest in (service, *jobs().values()):
        validate(manifest, "1.30", strict=True)
