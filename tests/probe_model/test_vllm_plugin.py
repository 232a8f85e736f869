"""The plugin's exchange against plain arithmetic, and the serve command against vLLM's own parser."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="runs in the vLLM environment only (make test-vllm)")
pytest.importorskip("vllm_cpu_ep", reason="runs in the vLLM environment only (make test-vllm)")

import torch.distributed as dist  # noqa: E402
from torch.multiprocessing import spawn  # noqa: E402
from vllm_cpu_ep import attention, collectives, experts, sparse  # noqa: E402

from app.probe_model.manifest import MANIFEST_FILE  # noqa: E402
from app.probe_model.serve import ALLGATHER_BACKEND, ROUTED_BACKENDS, serve_command  # noqa: E402
from app.probe_model.synthetic import synthetic_manifest  # noqa: E402

pytestmark = pytest.mark.vllm

RANKS = 3
SIZES = [4, 0, 2]  # rows of each rank; an empty rank takes part all the same
EXPERTS = 7  # uneven: ranks hold 3, 2 and 2
DELAY = 0.3


def rows_of(rank: int) -> sparse.Rows:
    """Deterministic rows of one rank: top-2 of 7 experts."""
    generator = torch.Generator().manual_seed(rank)
    scores = torch.rand(SIZES[rank], EXPERTS, generator=generator).topk(2, dim=1)
    hidden = torch.randn(SIZES[rank], 8, generator=generator)
    return sparse.Rows(hidden, scores.values, scores.indices.to(torch.int32))


def computed(rows: sparse.Rows, held: set[int]) -> Any:
    """What experts that multiply by their number plus one make of the rows, held experts only."""
    factor = torch.zeros_like(rows.weights)
    for expert in held:
        factor += torch.where(rows.ids == expert, rows.weights * (expert + 1), 0.0)
    return rows.hidden * factor.sum(dim=1, keepdim=True)


def rank_main(rank: int, folder: str) -> None:
    """One rank: exchange with both all-to-alls and keep the results for the test to compare."""
    os.environ["VLLM_CPU_EP_FAULTS"] = f"{folder}/faults.json"
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=RANKS)
    group = SimpleNamespace(
        device_group=dist.group.WORLD, ranks=list(range(RANKS)), rank_in_group=rank, world_size=RANKS
    )
    owner = sparse.expert_owners(EXPERTS, RANKS)
    held = {expert for expert in range(EXPERTS) if int(owner[expert]) == rank}
    mine = rows_of(rank)

    start = time.monotonic()
    gathered, step = sparse.dispatch_rows(group, owner, SIZES, mine)
    dispatched = time.monotonic() - start
    routed = sparse.combine_rows(step, computed(gathered, held))
    everything = sparse.Rows(*collectives.all_gatherv(group, list(mine), 0, SIZES))
    summed = collectives.reduce_scatterv(group, computed(everything, held), 0, SIZES)
    torch.save(
        {"routed": routed, "summed": summed, "ids": gathered.ids, "held": held, "seconds": dispatched},
        f"{folder}/{rank}.pt",
    )
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "faults.json").write_text(json.dumps({"path:2>0": {"ms": DELAY * 1000}}))
    spawn(rank_main, (str(folder),), nprocs=RANKS)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(RANKS)]


def test_both_all_to_alls_compute_what_one_rank_would(results: list[dict[str, Any]]) -> None:
    for rank, result in enumerate(results):
        expected = computed(rows_of(rank), set(range(EXPERTS)))
        assert result["routed"].shape == expected.shape
        torch.testing.assert_close(result["routed"], expected)
        torch.testing.assert_close(result["summed"], expected)


def test_only_routed_rows_travel(results: list[dict[str, Any]]) -> None:
    everyone = torch.cat([rows_of(rank).ids for rank in range(RANKS)])
    for rank, result in enumerate(results):
        first = sum(SIZES[:rank])
        own = (torch.arange(sum(SIZES)) >= first) & (torch.arange(sum(SIZES)) < first + SIZES[rank])
        wanted = torch.stack([everyone == expert for expert in result["held"]]).any(dim=0).any(dim=1)
        arrived = (result["ids"] >= 0).any(dim=1)
        assert torch.equal(arrived, wanted | own)


def test_a_path_fault_delays_the_receiver_only(results: list[dict[str, Any]]) -> None:
    seconds = [result["seconds"] for result in results]
    # Rank 2 finishes its sends late as well, since it holds the payload back itself.
    assert seconds[0] >= DELAY
    assert seconds[1] < DELAY


def test_linear_placement_matches_vllm() -> None:
    from vllm.model_executor.layers.fused_moe.expert_map_manager import determine_expert_map

    for ranks, count in ((4, 16), (3, 7), (5, 8)):
        owner = sparse.expert_owners(count, ranks)
        for rank in range(ranks):
            _, expert_map, _ = determine_expert_map(ranks, rank, count)
            assert torch.equal(owner == rank, expert_map >= 0)


def test_a_dummy_step_attends_to_nothing() -> None:
    """An idle rank's output is zeros, whatever its memory held before."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl

    attention.install()
    idle = CPUAttentionBackendImpl.__new__(CPUAttentionBackendImpl)
    output = torch.full((1, 8), torch.nan)
    assert idle.forward(*(None,) * 6, output=output) is output
    assert torch.equal(output, torch.zeros(1, 8))


def test_the_routing_log_counts_rows_by_expert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(experts.LOG_VARIABLE, str(tmp_path / "log"))
    monkeypatch.delenv("VLLM_CPU_EP_FAULTS", raising=False)
    calls = []

    def kernel(out: Any, rows: Any, *_: Any) -> None:
        calls.append(len(rows))
        out.copy_(rows)

    layer = SimpleNamespace(
        w1_bias=None,
        w2_bias=None,
        isa="vec",
        moe_config=SimpleNamespace(moe_parallel_config=SimpleNamespace(ep_rank=1)),
    )
    call = {
        "topk_ids": torch.tensor([[2, 3], [3, -1], [0, 1]]),
        "expert_map": torch.tensor([-1, -1, 0, 1]),
        "output": torch.ones(3, 4),
        "hidden_states": torch.arange(12.0).view(3, 4),
        "topk_weights": torch.ones(3, 2),
        "w1": None,
        "w2": None,
        "activation": SimpleNamespace(value="silu"),
        "apply_router_weight_on_input": False,
    }
    experts._apply_local(layer, kernel, call)

    assert calls == [3]
    assert torch.equal(call["output"], torch.arange(12.0).view(3, 4) * torch.tensor([[2.0], [1.0], [0.0]]))
    lines = (tmp_path / "log.1.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"rank": 1, "rows": {"2": 1, "3": 2}}]


@pytest.mark.parametrize("backend", [ALLGATHER_BACKEND, *ROUTED_BACKENDS])
def test_vllm_accepts_every_flag(tmp_path: Path, parser: Any, backend: str) -> None:
    synthetic_manifest(8, dtype="bfloat16").dump(tmp_path / MANIFEST_FILE)
    command = serve_command(
        tmp_path, all2all=backend, kv_cache_memory_bytes=2**26, enforce_eager=True, tensor_parallel=2
    )

    given = parser.parse_args(command[2:])
    assert given.model_tag == str(tmp_path)
    assert given.data_parallel_size == 4
    assert given.enable_expert_parallel is True
    assert given.all2all_backend == backend
    assert given.enable_eplb is False
    assert given.enable_prefix_caching is False
    assert given.max_num_seqs == 64
    with pytest.raises(SystemExit):
        parser.parse_args([*command[2:], "--no-such-flag"])


@pytest.fixture(scope="module")
def parser() -> Any:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    return make_arg_parser(FlexibleArgumentParser())
