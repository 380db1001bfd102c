"""The demo's text and model: same on every worker, split by file, small enough."""

import pytest
import torch

from thc_lab.demo.data import VOCABULARY_SIZE, BatchSampler, load_corpus
from thc_lab.demo.model import Gpt, GptShape, loss_of, window_losses
from thc_lab.demo.worker import flatten_gradients


def test_corpus_is_deterministic_and_in_range() -> None:
    corpus, again = load_corpus(), load_corpus()
    assert torch.equal(corpus.training, again.training)
    assert torch.equal(corpus.held_out, again.held_out)
    assert int(corpus.training.min()) >= 0
    assert int(corpus.training.max()) < VOCABULARY_SIZE
    assert len(corpus.training) > 1_000_000
    assert 10_000 < len(corpus.held_out) < 100_000


def test_batches_depend_on_seed_and_worker_only() -> None:
    tokens = torch.arange(1000)

    def batch(seed: int, worker: int) -> torch.Tensor:
        return BatchSampler(tokens, batch_size=2, context=8, seed=seed, worker=worker).next_batch()[0]

    assert torch.equal(batch(1, 0), batch(1, 0))
    assert not torch.equal(batch(1, 0), batch(1, 1))
    assert not torch.equal(batch(1, 0), batch(2, 0))


def test_targets_are_the_inputs_one_character_later() -> None:
    inputs, targets = BatchSampler(torch.arange(100), batch_size=3, context=5, seed=0, worker=0).next_batch()
    assert torch.equal(targets, inputs + 1)


def test_default_model_has_about_a_million_parameters() -> None:
    parameters = sum(parameter.numel() for parameter in Gpt(GptShape()).parameters())
    assert 900_000 < parameters < 1_100_000


def test_a_prediction_sees_only_what_is_before_it() -> None:
    torch.manual_seed(0)
    model = Gpt(GptShape(layers=2, heads=2, width=16, context=12))
    ids = torch.randint(VOCABULARY_SIZE, (1, 12))
    changed = ids.clone()
    changed[0, 7] = (changed[0, 7] + 1) % VOCABULARY_SIZE
    same = (model(ids) == model(changed)).all(dim=2)[0]
    assert same[:7].all()
    assert not same[7:].any()


def test_windows_shared_by_workers_add_up_to_all_of_them() -> None:
    torch.manual_seed(0)
    model = Gpt(GptShape(layers=1, heads=2, width=16, context=8))
    tokens = torch.randint(VOCABULARY_SIZE, (8 * 7 + 1,))
    total, windows = window_losses(model, tokens, 8, None, 0, 1)
    shares = [window_losses(model, tokens, 8, None, worker, 3) for worker in range(3)]
    assert windows == 7
    assert sum(taken for _, taken in shares) == 7
    assert sum(share for share, _ in shares) == pytest.approx(total, rel=1e-5)


def test_gradients_are_views_of_flat_arrays() -> None:
    torch.manual_seed(0)
    model = Gpt(GptShape(layers=2, heads=2, width=16, context=8))
    gradients = flatten_gradients(model)
    assert list(gradients) == ["embeddings", "blocks.0", "blocks.1"]
    ids = torch.randint(VOCABULARY_SIZE, (2, 8))
    loss_of(model, ids, ids).backward()
    reference = {name: parameter.grad for name, parameter in model.named_parameters()}
    flat_energy = sum(float((gradient.astype("f8") ** 2).sum()) for gradient in gradients.values())
    energy = sum(float(grad.double().square().sum()) for grad in reference.values() if grad is not None)
    assert flat_energy == pytest.approx(energy)
    assert energy > 0
