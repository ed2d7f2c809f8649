"""Environment variables by which launchers tell a process its place: torchrun's, torch_tpu's, and those of a chip."""

from __future__ import annotations

from collections.abc import Mapping

OF_A_RANK = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
# What else torchrun sets for its workers, or reads (torch/distributed/elastic/agent/server/local_elastic_agent.py)
TORCHRUN_PREFIXES = ("PET_", "TORCHELASTIC_", "TORCH_ELASTIC_", "GROUP_", "ROLE_", "MASTER_")
MASTER_PORT = 29500  # where ranks meet: torchrun's, and what set_tpu_launch_env sets

# What set_tpu_launch_env reads, and what it sets and, where it is set already, keeps
# (torch_tpu/_internal/distributed/distributed.py)
OF_A_SLICE = ("TPU_WORKER_HOSTNAMES", "JOB_COMPLETION_INDEX")
OF_A_LAUNCH = (
    "TORCH_TPU_TOPOLOGY",
    "TORCH_TPU_SLICEBUILDER_ADDRESSES",
    "TORCH_TPU_XPROF_SESSION_ID",
    "NNODES",
    "NODE_RANK",
)
BASE_PORT = 8070  # its TORCH_TPU_BASE_PORT on several hosts: a port for each device from there on
# What torch_tpu's native code sets in each rank, from LOCAL_RANK and the variables above
OF_A_CHIP = (
    "CLOUD_TPU_TASK_ID",
    "TPU_CHIPS_PER_PROCESS_BOUNDS",
    "TPU_PROCESS_ADDRESSES",
    "TPU_PROCESS_BOUNDS",
    "TPU_PROCESS_PORT",
    "TPU_VISIBLE_CHIPS",
    "TPU_VISIBLE_DEVICES",
)


def inside_a_rank(environment: Mapping[str, str]) -> bool:
    """Whether torchrun started the process: its run id is there beside the rank."""
    return "TORCHELASTIC_RUN_ID" in environment and "RANK" in environment


def without_torchrun(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without what torchrun tells a worker: for a process that has no place among its ranks."""
    return {
        name: value
        for name, value in environment.items()
        if name not in OF_A_RANK and not name.startswith(TORCHRUN_PREFIXES)
    }
