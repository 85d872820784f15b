"""A process of a run that is asked to stop after some batches: `stopping.py SPEC OUT COUNT`, never when 0."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from energyml.data.dataset import Batch
from energyml.driver import compile_source, read_source
from energyml.train import loss
from energyml.train.run import Request, train


def main(spec: str, out: str, count: int) -> None:
    """Train; the second process alone gets the signal, in the middle of an epoch."""
    done, forward = 0, loss.StageLoss.forward

    def counting(self: loss.StageLoss, batch: Batch, player: str | None = None) -> object:
        nonlocal done
        done += 1
        if done == count and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGTERM)
        return forward(self, batch, player)

    loss.StageLoss.forward = counting  # type: ignore[assignment, method-assign]
    found = train(compile_source(read_source(spec)), Request(out=Path(out), resume=True))
    assert found.interrupted == (count > 0)
    left = [one.read_text().strip() for one in Path("/proc/self/task").glob("*/comm")]
    assert not [name for name in left if "gloo" in name], f"threads of the group live on: {left}"


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
