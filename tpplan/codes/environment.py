"""Codes 9xx: the installation and the machine."""

from __future__ import annotations

from tpplan.codes.code import Code, error, warning

ENVIRONMENT: dict[str, Code] = {
    "TPP901": error(
        "environment",
        "a package is missing, too old, or has moved",
        "tpplan needs torch and a Transformers from 5.19, with the internals that it names at its door.",
    ),
    "TPP902": error(
        "hub-unreachable",
        "the config could not be fetched from the hub",
        "There is no network, the id does not exist, or access needs a token. Give a directory with a config.json, or "
        "fetch the config once with `hf download ID config.json`.",
    ),
    "TPP910": error(
        "torch-tpu-missing",
        "torch_tpu is not installed",
        "A device of the TPU family was asked for. torch_tpu brings PyTorch's `tpu` device; without it every rank "
        "would run on CPU without a word.",
    ),
    "TPP911": error(
        "no-tpu-chip",
        "there is no TPU chip",
        "torch_tpu loads and sees no chip on this machine (it looks at the PCI bus and /dev/vfio). Inside a container "
        "the devices must be passed through.",
    ),
    "TPP912": error(
        "tpu-launch-environment",
        "torch_tpu cannot prepare a launch",
        "Before ranks start, torch.tpu.distributed.set_tpu_launch_env() must set what they agree on. It, or loading "
        "torch_tpu, raised. On several hosts it reads TPU_WORKER_HOSTNAMES (all hosts, comma-separated, the same on "
        "each), JOB_COMPLETION_INDEX (this host, from 0) and TORCH_TPU_TOPOLOGY (the whole slice, such as 2x4).",
    ),
    "TPP913": error(
        "launcher-failed",
        "torchrun did not start the ranks, or lost them",
        "The evidence is the end of torchrun's own output. With several hosts, all must be given the same endpoint, "
        "and be able to reach it.",
    ),
    "TPP920": error(
        "requirement-not-met",
        "a package is missing or outside a range that another asks for",
        "The ranges are those in the metadata of the installed packages, as pip reads them: what a package requires "
        "always, and its optional integration with a package that happens to be installed. pip keeps them when it "
        "installs, and breaks them when another package is installed later or without its dependencies.",
    ),
    "TPP921": error(
        "no-native-library",
        "torch_tpu ships no native library for the installed torch",
        "torch_tpu has a set of libraries for each torch release that broke its binary interface, and loads the newest "
        "set that is not newer than torch. Before the oldest there is none, and `import torch` raises.",
    ),
    "TPP922": error(
        "import-breaks",
        "torch, Transformers or torch_tpu does not import",
        "A child process imported it and raised, ended, or did not answer in time; the evidence is its last word. torch "
        "loads torch_tpu by itself, so a torch_tpu that is broken breaks `import torch`, on cpu too; "
        "TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps it out.",
    ),
    "TPP923": error(
        "chips-not-usable",
        "the chips of this machine are not the ones that torch can use",
        "torch_tpu counts the TPUs on the PCI bus that /dev/vfio exposes. Ranks need as many as torch.accelerator sees, "
        "in a number for which torch_tpu knows a topology.",
    ),
    "TPP924": error(
        "chip-held",
        "another process holds a chip",
        "A chip serves one process at a time. One that a finished launch left behind keeps the next one from starting, "
        "or makes it wait. Processes are found by their open files and by libtpu's lock, /tmp/libtpu_lockfile.",
    ),
    "TPP925": error(
        "rank-variables-left",
        "the environment says that this process is a rank, and no launcher is there",
        "RANK, LOCAL_RANK, WORLD_SIZE or LOCAL_WORLD_SIZE is set without torchrun's TORCHELASTIC_RUN_ID. A process "
        "that loads a sharded model with them waits for ranks that nobody started.",
    ),
    "TPP926": error(
        "launch-variables-at-odds",
        "the variables of the TPU launch contradict each other",
        "set_tpu_launch_env overwrites nothing that is set: variables of an earlier launch, of another topology or of "
        "other hosts go into the next one, which then raises or waits for ever.",
    ),
    "TPP927": error(
        "torch-tpu-kept-out",
        "torch is told not to load torch_tpu",
        "TORCH_DEVICE_BACKEND_AUTOLOAD is neither unset nor 1. torch then has no tpu device, whatever is installed.",
    ),
    "TPP928": warning(
        "tcmalloc-missing",
        "tcmalloc is not the allocator",
        "torch_tpu frees memory in other threads than the one that took it, for which glibc's malloc holds locks; "
        "torch_tpu warns of it on import. Preload tcmalloc before Python starts.",
    ),
    "TPP929": error(
        "hub-kernels-incomplete",
        "kernels from the hub cannot run on TPU",
        "The kernels library has TPU kernels from 0.17; they wrap JAX and Pallas, so jax must be installed.",
    ),
    "TPP930": error(
        "port-taken",
        "a port that the launch needs cannot be listened on",
        "Ranks meet at MASTER_PORT (29500 unless set), torch_tpu's processes at the ports in "
        "TORCH_TPU_SLICEBUILDER_ADDRESSES, from TORCH_TPU_BASE_PORT (8070) on where there are several hosts.",
    ),
    "TPP931": error(
        "memory-too-small",
        "a process for each device does not fit into memory",
        "The memory that is free, of the machine or of this container if less, is below what processes need that have "
        "imported torch and Transformers, one for each device. A model comes on top.",
    ),
    "TPP932": error(
        "chip-variables-left",
        "variables of libtpu are left over from another process",
        "torch_tpu's native code sets TPU_VISIBLE_CHIPS, TPU_PROCESS_BOUNDS and the like for each rank. Set for all "
        "processes, as JAX users do by hand, they make ranks see other chips. TPU_LIBRARY_PATH, when set, replaces the "
        "path of the installed libtpu.",
    ),
}
