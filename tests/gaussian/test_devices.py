"""Direct methods on a device that is not there: no host copies, no waiting, no writing into inputs."""

from __future__ import annotations

import pytest
import torch

from tests.contract.device_harness import ELSEWHERE, DeviceHarness, elsewhere
from tests.gaussian.cases import CASES

# Lists of edges are ordered on the host, and conjugate gradients ask now and then whether they are done.
SERVED = [name for name in CASES if "sparse" not in name]


@pytest.mark.parametrize("name", SERVED)
def test_direct_methods_never_wait(name: str) -> None:
    case = CASES[name]
    model = case.model()
    inputs = {key: one.requires_grad_() for key, one in elsewhere(case.inputs()).items()}
    with DeviceHarness(inputs.values()):
        posterior = model.infer(**inputs, using="exact")
        mode = posterior.mode["s"]
        mode.sum().backward()
        assert mode.device == ELSEWHERE and inputs["u"].grad is not None
        assert posterior.log_partition.device == ELSEWHERE
        assert posterior.variance["s"].device == ELSEWHERE
        assert posterior.entropy.device == ELSEWHERE
        posterior.conditionals(s=torch.zeros_like(inputs["u"]))
        if case.on_grid:
            posterior.map()
            posterior.sample(2)
            model.loss(**inputs, y=torch.zeros(2, 3, 4, dtype=torch.long, device=ELSEWHERE), objective="marginal_ce")


def test_ragged_fields_never_wait() -> None:
    case = CASES["potts and edges"]
    inputs = elsewhere(case.inputs())
    lengths = {"H": torch.zeros(2, dtype=torch.long, device=ELSEWHERE)}
    with DeviceHarness(inputs.values()):
        posterior = case.model().infer(**inputs, lengths=lengths, using="exact")
        assert posterior.mode["s"].device == ELSEWHERE and posterior.log_partition.device == ELSEWHERE
