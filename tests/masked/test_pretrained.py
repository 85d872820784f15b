"""Pretrained masked language models: a tiny random BERT in a temporary folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from energyml.diagnostics import EnergyError
from energyml.nets.bound import BoundType
from energyml.nets.masked_pretrained import PretrainedMasked, read_vocabulary, real_labels

torch.set_num_threads(1)
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]", "A", "C", "##ing", "D"]
REAL = ("A", "C", "##ing", "D")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    transformers = pytest.importorskip("transformers")
    made: Path = tmp_path_factory.mktemp("bert")
    (made / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS), encoding="utf-8")
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BertConfig(
        vocab_size=len(WORDS), intermediate_size=12, max_position_embeddings=9, initializer_range=0.5, **sizes
    )
    transformers.BertForMaskedLM(config).save_pretrained(made)
    transformers.BertTokenizer(str(made / "vocab.txt"), do_lower_case=False).save_pretrained(made)
    return made


def net(folder: Path, labels: tuple[str, ...] = REAL) -> PretrainedMasked:
    return PretrainedMasked(labels, path=str(folder), dim="T").double().eval()


def by_hand(one: PretrainedMasked, tokens: list[int]) -> Tensor:
    """[T, tokens of the model]: special tokens around the sequence, one position masked at a time."""
    rows = []
    for t in range(len(tokens)):
        ids = torch.tensor([[2, *tokens[:t], 4, *tokens[t + 1 :], 3]])
        rows.append(one.model(input_ids=ids).logits[0, t + 1])
    return torch.stack(rows)


def test_real_tokens_are_the_labels(folder: Path) -> None:
    assert real_labels(str(folder)) == REAL
    words = read_vocabulary(str(folder))
    assert (words.before, words.behind, words.mask, words.pad) == ((2,), (3,), 4, 0)


def test_scores_are_those_of_the_model_with_one_mask_at_a_time(folder: Path) -> None:
    one = net(folder)
    y = torch.tensor([[0, 3, 2, 1], [1, 1, -1, -1], [2, -1, -1, -1]])
    mask = y >= 0
    found = one.masked_scores(y, (), {"T": mask})
    assert found.shape == (3, 4, 4)
    for row in range(3):
        tokens = one.tokens[y[row][mask[row]]].tolist()
        torch.testing.assert_close(found[row, mask[row]], by_hand(one, tokens)[:, [6, 7, 8, 9]])


def test_gaps_labels_in_another_order_and_chunks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = net(folder, ("D", "A"))
    y = torch.tensor([[0, -1, 1, 0], [1, 0, 1, 0]])
    found = one.masked_scores(y, (), {"T": y >= 0})
    torch.testing.assert_close(found[0, [0, 2, 3]], by_hand(one, [9, 6, 9])[:, [9, 6]])
    monkeypatch.setattr("energyml.nets.masked_pretrained.ACTIVATIONS", 1)
    torch.testing.assert_close(one.masked_scores(y, (), {"T": y >= 0}), found)
    assert one.masked_scores(y[:0], (), {}).shape == (0, 4, 2)
    assert one.masked_scores(y[:, :0], (), {}).shape == (2, 0, 2)


def test_hidden_positions_share_a_pass(folder: Path) -> None:
    one = net(folder)
    y = torch.tensor([[0, 4, 2, 4], [4, -1, 1, -1]])
    found = one.hidden_scores(y, (), {"T": y >= 0})
    full = one.model(input_ids=torch.tensor([[2, 6, 4, 8, 4, 3]])).logits[0, 1:5, 6:]
    torch.testing.assert_close(found[0, [1, 3]], full[[1, 3]])
    short = one.model(input_ids=torch.tensor([[2, 4, 7, 3]])).logits[0, 1, 6:]
    torch.testing.assert_close(found[1, 0], short)
    assert one.hidden_scores(y[:0], (), {}).shape == (0, 4, 4)


def test_loading_says_nothing(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from transformers.utils import logging

    logging.enable_progress_bar()
    read_vocabulary.cache_clear()
    net(folder)
    assert logging.is_progress_bar_enabled()  # as it was
    assert capfd.readouterr() == ("", "")


def test_gradients_reach_the_model(folder: Path) -> None:
    one = net(folder)
    one.masked_scores(torch.tensor([[0, 3]]), (), {}).log_softmax(-1)[0, 0, 1].backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in one.parameters())


def test_mistakes_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(EnergyError, match=r"no token `walking`.*labels X from mlm"):
        net(folder, ("A", "walking"))
    with pytest.raises(EnergyError, match="at most 7 labels, and here are 8"):
        net(folder).masked_scores(torch.zeros(1, 8, dtype=torch.long), (), {})
    with pytest.raises(EnergyError, match="reads nothing beside its tokens"):
        PretrainedMasked(REAL, (BoundType(None, (2,), (None,)),), path=str(folder), dim="T")
    with pytest.raises(EnergyError, match=r"cannot be read.*online: true"):
        real_labels(str(tmp_path / "nothing"))


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    read_vocabulary.cache_clear()
    monkeypatch.setattr("energyml.nets.masked_pretrained.import_module", missing)
    with pytest.raises(EnergyError, match=r"pip install 'energyml\[transformers\]'"):
        real_labels("models/none")
