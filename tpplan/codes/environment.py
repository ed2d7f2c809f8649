"""Codes 9xx: the installation and the machine."""

from __future__ import annotations

from tpplan.codes.code import Code, error, warning

ENVIRONMENT: dict[str, Code] = {
    "TPP901": error(
        "environment",
        "a package is missing, too old, or has moved",
        meaning="tpplan needs torch and a Transformers from 5.19, with the internals that it uses.",
        reason="Nothing can be judged without them.",
        example="A broken installation shows it: an environment without torch.",
        action="Install what the fix names. `tpplan doctor` shows all packages.",
    ),
    "TPP902": error(
        "hub-unreachable",
        "the config could not be fetched from the hub",
        meaning="There is no network, the id does not exist, or access needs a token.",
        reason="Without its config nothing is known about the model.",
        example="tpplan check example/no-such-model --tp-size 4",
        action="Give a directory with a config.json, or fetch the config once with `hf download ID config.json`.",
    ),
    "TPP910": error(
        "torch-tpu-missing",
        "torch_tpu is not installed",
        meaning="A device of the TPU family was asked for, and torch_tpu, which brings PyTorch's `tpu` device, is "
        "missing.",
        reason="Every rank would run on CPU without a message.",
        example="A machine without torch_tpu shows it: `tpplan doctor --device tpu`.",
        action="Install torch_tpu.",
    ),
    "TPP911": error(
        "no-tpu-chip",
        "there is no TPU chip",
        meaning="torch_tpu looks at the PCI bus and /dev/vfio, and sees no chip on this machine.",
        reason="No rank can be launched on TPU here.",
        example="A machine without a TPU shows it: `tpplan doctor --device tpu`.",
        action="Run it on a TPU host. Inside a container, pass the devices through.",
    ),
    "TPP912": error(
        "tpu-launch-environment",
        "torch_tpu cannot prepare a launch",
        meaning="Before ranks start, torch.tpu.distributed.set_tpu_launch_env() must set what they agree on. It, or "
        "loading torch_tpu, raised. On several hosts it reads TPU_WORKER_HOSTNAMES (all hosts, comma-separated, the "
        "same on each), JOB_COMPLETION_INDEX (this host, from 0) and TORCH_TPU_TOPOLOGY (the complete slice, such as "
        "2x4).",
        reason="Ranks without these variables do not find each other.",
        example="A TPU host shows it: `tpplan launch --device tpu` with a torch_tpu whose native library does not "
        "load.",
        action="Correct the variable that the evidence names.",
    ),
    "TPP913": error(
        "launcher-failed",
        "torchrun did not start the ranks, or lost them",
        meaning="torchrun ended before the ranks had finished; the evidence is the end of its own output.",
        reason="The launch did not finish, so nothing is known about the plan.",
        example="Real ranks show it, under `tpplan verify`: a rendezvous endpoint that no host listens on.",
        action="Correct what the evidence names. With several hosts, give all the same endpoint, which each can reach.",
    ),
    "TPP914": error(
        "process-died",
        "the process that judged it died",
        meaning="With several models or plans, each is judged in a process of its own. This one's ended without an "
        "answer: it was killed, or it ran out of memory.",
        reason="Nothing was learned about this model or plan; the others have their verdicts.",
        example="A process that is killed shows it: `tpplan check plans/` on a machine without free memory.",
        action="Check it alone: `tpplan check PLAN`.",
    ),
    "TPP920": error(
        "requirement-not-met",
        "a package is missing or outside a range that another asks for",
        meaning="The ranges are those in the metadata of the installed packages, as pip reads them: what a package "
        "requires always, and its optional integration with a package that happens to be installed.",
        reason="pip keeps the ranges when it installs, and breaks them when another package is installed later or "
        "without its dependencies. Packages outside them fail in places that do not name the cause.",
        example="A machine shows it, under `tpplan doctor`: a tokenizers newer than Transformers asks for.",
        action="Run the pip command of the fix.",
    ),
    "TPP921": error(
        "no-native-library",
        "torch_tpu ships no native library for the installed torch",
        meaning="torch_tpu has a set of libraries for each torch release that broke its binary interface, and loads "
        "the newest set that is not newer than torch. The installed torch is older than all of them.",
        reason="`import torch` raises.",
        example="A machine shows it, under `tpplan doctor --device tpu`: a torch older than torch_tpu supports.",
        action="Install a torch release of the range in the fix.",
    ),
    "TPP922": error(
        "import-breaks",
        "torch, Transformers or torch_tpu does not import",
        meaning="A child process imported it and raised, ended, or did not answer in time; the evidence is its last "
        "output.",
        reason="torch loads torch_tpu by itself, so a torch_tpu that is broken breaks `import torch`, on cpu too.",
        example="A machine shows it, under `tpplan doctor`: a torch whose native libraries are missing.",
        action="Install the package anew. TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps torch_tpu out.",
    ),
    "TPP923": error(
        "chips-not-usable",
        "the chips of this machine are not the ones that torch can use",
        meaning="torch_tpu finds the TPUs on the PCI bus that /dev/vfio exposes. torch.accelerator sees a different "
        "number, or one for which torch_tpu knows no topology.",
        reason="A launch with one rank per chip fails.",
        example="A machine shows it, under `tpplan doctor`: a container that gets three of four chips.",
        action="Pass all devices of the host through, or a number for which there is a topology.",
    ),
    "TPP924": error(
        "chip-held",
        "another process holds a chip",
        meaning="Processes that hold a chip are found by their open files and by libtpu's lock, /tmp/libtpu_lockfile.",
        reason="A chip serves one process at a time. One that a finished launch left behind keeps the next one from "
        "starting, or makes it wait.",
        example="A machine shows it, under `tpplan doctor`: a launch that still runs.",
        action="End the process that the fix names, or remove the lock of another user.",
    ),
    "TPP925": error(
        "rank-variables-left",
        "the environment says that this process is a rank, and no launcher is there",
        meaning="RANK, LOCAL_RANK, WORLD_SIZE or LOCAL_WORLD_SIZE is set without torchrun's TORCHELASTIC_RUN_ID.",
        reason="A process that loads a sharded model with them waits for ranks that nobody started.",
        example="A machine shows it: `RANK=0 tpplan doctor`.",
        action="Unset the variables.",
    ),
    "TPP926": error(
        "launch-variables-at-odds",
        "the variables of the TPU launch contradict each other",
        meaning="Variables of an earlier launch, of a different topology or of different hosts are set.",
        reason="set_tpu_launch_env overwrites nothing that is set, so they go into the next launch, which then raises "
        "or waits for ever.",
        example="A machine shows it, under `tpplan doctor`: a TORCH_TPU_TOPOLOGY whose number of chips is not that of "
        "its addresses.",
        action="Unset the variables of the earlier launch, or set them alike on every host.",
    ),
    "TPP927": error(
        "torch-tpu-kept-out",
        "torch is told not to load torch_tpu",
        meaning="TORCH_DEVICE_BACKEND_AUTOLOAD is neither unset nor 1.",
        reason="torch then has no tpu device, whatever is installed.",
        example="A machine shows it: `TORCH_DEVICE_BACKEND_AUTOLOAD=0 tpplan doctor --device tpu`.",
        action="Unset the variable.",
    ),
    "TPP928": warning(
        "tcmalloc-missing",
        "tcmalloc is not the allocator",
        meaning="The process runs with glibc's malloc; torch_tpu warns of it on import.",
        reason="torch_tpu frees memory in a thread different from the one that allocated it, for which glibc's malloc "
        "holds locks, so its threads wait.",
        example="A machine shows it, under `tpplan doctor --device tpu`: no LD_PRELOAD.",
        action="Preload tcmalloc before Python starts, as the fix shows.",
    ),
    "TPP929": error(
        "hub-kernels-incomplete",
        "kernels from the hub cannot run on TPU",
        meaning="The kernels library is installed, and is older than 0.17 or has no jax beside it.",
        reason="It has TPU kernels from 0.17; they wrap JAX and Pallas, so they need jax.",
        example="A machine shows it, under `tpplan doctor --device tpu`: kernels without jax.",
        action="Run the pip command of the fix.",
    ),
    "TPP930": error(
        "port-taken",
        "a port that the launch needs cannot be listened on",
        meaning="Ranks meet at MASTER_PORT (29500 unless set), torch_tpu's processes at the ports in "
        "TORCH_TPU_SLICEBUILDER_ADDRESSES, from TORCH_TPU_BASE_PORT (8070) on where there are several hosts. One of "
        "these is taken, or no port.",
        reason="The launch raises, or its ranks talk to another process.",
        example="A machine shows it, under `tpplan doctor`: another launch that listens on port 29500.",
        action="Give the port of the fix.",
    ),
    "TPP931": error(
        "memory-too-small",
        "a process for each device does not fit into memory",
        meaning="The memory that is free, of the machine or of this container if less, is below what processes need "
        "that have imported torch and Transformers, one for each device. A model comes in addition.",
        reason="The launch would make the kernel kill a process.",
        example="A machine shows it, under `tpplan doctor`: a container with 1 GiB for 8 devices.",
        action="End other processes, or raise the container's limit.",
    ),
    "TPP932": error(
        "chip-variables-left",
        "variables of libtpu are left over from another process",
        meaning="TPU_VISIBLE_CHIPS, TPU_PROCESS_BOUNDS or the like is set for all processes, as JAX users do by hand, "
        "or TPU_LIBRARY_PATH, which replaces the path of the installed libtpu, names no file.",
        reason="torch_tpu's native code sets them for each rank; values that are there already make ranks see the "
        "wrong chips.",
        example="A machine shows it: `TPU_VISIBLE_CHIPS=0 tpplan doctor --device tpu`.",
        action="Unset the variables.",
    ),
    "TPP940": error(
        "compiler-missing",
        "the packages that bring the TPU's compiler are not installed",
        meaning="The aot stage needs torch_tpu, which lowers the model and brings libtpu with the compiler, and jax, "
        "which brings a client that compiles for chips that are not there.",
        reason="The stage did not run, so nothing is known of what it would find.",
        example="A machine without torch_tpu shows it: `tpplan check MODEL --tp-size 4 --device tpu-v6e --depth aot`.",
        action="Install the extra: pip install 'tpplan[aot]'. No TPU is needed.",
    ),
    "TPP941": error(
        "compiler-silent",
        "the TPU's compiler gave no answer",
        meaning="The installed torch_tpu or jax lacks what tpplan uses of it, or the process that compiles died or "
        "took too long; the evidence says which.",
        reason="The stage did not run, so nothing is known of what it would find.",
        example="The TPU's compiler shows it, where it is killed for lack of memory.",
        action="Install the tested set of versions. Where the process was killed, give it more memory, or leave --full "
        "out.",
    ),
}
