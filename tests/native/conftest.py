"""What tests of the native kernels share."""

import pytest
import torch

from energyml.native import chain


@pytest.fixture
def use_threads(monkeypatch):
    """Sets how many threads chains get, however short they are."""
    before = torch.get_num_threads()
    monkeypatch.setattr(chain, "WORTH_A_THREAD", 1)
    yield torch.set_num_threads
    torch.set_num_threads(before)
