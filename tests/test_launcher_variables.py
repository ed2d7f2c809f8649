"""The table of launchers' variables against the torchrun that is installed."""

from __future__ import annotations

import inspect
import re

from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

from tpplan.launcher_variables import OF_A_RANK, inside_a_rank, without_torchrun

SETTING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"  # of any process with NCCL, not of a worker's place


def test_all_that_torchrun_tells_a_worker_is_left_out() -> None:
    told = set(re.findall(r'"([A-Z_]+)":', inspect.getsource(LocalElasticAgent._start_workers))) - {SETTING}
    assert len(told) > 10 and told >= set(OF_A_RANK) - {"LOCAL_RANK"}
    assert inside_a_rank(dict.fromkeys(told, "1"))
    assert without_torchrun(dict.fromkeys(told | set(OF_A_RANK), "1") | {"PATH": "/bin"}) == {"PATH": "/bin"}


def test_a_rank_s_variable_alone_makes_no_rank() -> None:
    assert not inside_a_rank({"RANK": "0"}) and not inside_a_rank({"TORCHELASTIC_RUN_ID": "none"})
