"""Metrics over several processes of torch.distributed."""

from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from energyml.metrics import make_metric


def count(rank: int, world: int, meeting: str, results: str) -> None:
    """One process: counts its share, adds up, writes what it sees."""
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    try:
        metric = make_metric("f1", ["O", "B-X"])
        if rank == 0:  # the other process has nothing to count, and takes part all the same
            metric.update(torch.tensor([[1, 0, 1]]), torch.tensor([[1, 1, 0]]))
        metric.all_reduce()
        Path(results, str(rank)).write_text(str(metric.value()))
    finally:
        dist.destroy_process_group()


def test_processes_add_up(tmp_path: Path) -> None:
    mp.spawn(count, args=(2, str(tmp_path / "meeting"), str(tmp_path)), nprocs=2)
    assert [float((tmp_path / str(rank)).read_text()) for rank in range(2)] == [0.5, 0.5]
