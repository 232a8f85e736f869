"""What tests and benchmarks on a real vLLM server share: its probe model, and the replica as it is registered."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.probe_model.manifest import load_manifest
from scripts.vllm_server import run_where_torch_is

if TYPE_CHECKING:
    from scripts.vllm_server import VllmServer

EXPERTS_PER_GPU, TOP_K, HIDDEN, SEQUENCES = 4, 2, 128, 16
_BUILD = """
import sys
from pathlib import Path
from app.probe_model.build import build
from app.probe_model.verify import verify
ranks, experts, top_k, hidden, sequences = map(int, sys.argv[2:])
folder = Path(sys.argv[1])
build(ranks, experts, top_k, hidden, folder, max_num_seqs=sequences)
verify(folder)
"""


def build_probe_model(venv: Path, folder: Path, ranks: int) -> None:
    """Build and verify the project's probe model where torch is."""
    run_where_torch_is(venv, _BUILD, folder, ranks, EXPERTS_PER_GPU, TOP_K, HIDDEN, SEQUENCES)


def replica_document(server: VllmServer, ranks: int, **changes: Any) -> dict[str, Any]:
    """The document that registers a server's ranks as a replica."""
    return {
        "name": "real-vllm",
        "gpus": ranks,
        "probe_endpoints": [{"url": server.url, "ranks": f"0-{ranks - 1}", "rank_choice": "header"}],
        "manifest": load_manifest(server.model).model_dump(mode="json"),
        "layout": {"dp": ranks, "all2all": "sparse"},
        "limits": {"probes_per_second": 100},
        **changes,
    }


def topology_document(server: VllmServer, ranks: int) -> dict[str, Any]:
    """Ranks that share a core exchange more slowly, as GPUs between hosts do."""
    return {"gpus": [{"rank": rank, "host": f"core-{core}"} for rank, core in enumerate(server.cores(ranks))]}
