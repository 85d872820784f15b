"""dynamax and synjax, compiled by XLA; arrays live in JAX before and after the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor

from benchmarks.exact.contestants import JAX, Prepared
from benchmarks.exact.sizes import LOG_PARTITION, MARGINALS, NLL, VITERBI, Case

# The work then happens in the calling thread, which is quicker than handing it over and waiting.
jax.config.update("jax_cpu_enable_async_dispatch", False)


def _array(tensor: Tensor) -> Any:
    return jnp.asarray(tensor.numpy())


def _tensors(found: Any) -> tuple[Tensor, ...]:
    return tuple(torch.as_tensor(np.array(one)) for one in (found if isinstance(found, tuple) else (found,)))


def _gold_score(case: Case) -> Callable[[Any, Any], Any]:
    known, mask = _array(case.known), _array(case.mask)

    def total(unary: Any, trans: Any) -> Any:
        cells = jnp.take_along_axis(unary, known[..., None], 2)[..., 0]
        steps = trans[known[:, :-1], known[:, 1:]]
        return (cells * mask).sum() + (steps * mask[:, 1:]).sum()

    return total


def _prepared(function: Any, *given: Any) -> Prepared:
    compiled = jax.jit(function).lower(*given).compile()
    return Prepared(lambda: jax.block_until_ready(compiled(*given)), _tensors)


def _loss(log_partition: Callable[[Any, Any], Any], case: Case) -> Callable[[Any, Any], tuple[Any, ...]]:
    gold = _gold_score(case)
    slope = jax.value_and_grad(lambda unary, trans: log_partition(unary, trans).sum() - gold(unary, trans), (0, 1))

    def train(unary: Any, trans: Any) -> tuple[Any, ...]:
        value, (by_unary, by_trans) = slope(unary, trans)
        return value, by_unary, by_trans

    return train


class Dynamax:
    """dynamax's `hmm_filter`, `hmm_smoother` and `hmm_posterior_mode`, vmapped over the batch and jitted.

    They do not ask that transitions sum to one, so exp(transitions) goes in as it is.  There is no mask.  Ragged chains
    get one more label that every label moves to behind the end with weight 1 and never leaves: the log-partition, its
    gradients, the marginals and the best path of the chain are then those of the padded one.
    """

    name, kind, whole = "dynamax", JAX, True
    smoother = "hmm_smoother"
    relative = False  # to the best transition, which keeps exp from overflowing and costs a pass over them

    def prepare(self, case: Case, task: str) -> Prepared:
        from dynamax.hidden_markov_model import inference

        labels = case.size[2]
        padding = (~_array(case.mask))[..., None]
        steps = _array(case.ends.to(case.unary.dtype)) - 1

        def widened(unary: Any, trans: Any) -> tuple[Any, Any, Any]:
            """Initial weights, transitions and scores as the library takes them."""
            trans = trans - jax.lax.stop_gradient(trans.max()) if self.relative else trans
            if not case.ragged:
                return jnp.ones(labels, unary.dtype), jnp.exp(trans), unary
            step = jnp.pad(jnp.exp(trans), ((0, 1), (0, 0)))
            step = jnp.concatenate([step, jnp.ones((labels + 1, 1), unary.dtype)], 1)
            scores = jnp.where(padding, -1e9, unary)
            behind = jnp.where(padding, 0.0, -1e9).astype(unary.dtype)
            return jnp.ones(labels + 1, unary.dtype), step, jnp.concatenate([scores, behind], 2)

        def over_batch(call: Callable[..., Any], unary: Any, trans: Any) -> Any:
            first, step, scores = widened(unary, trans)
            return jax.vmap(lambda one: call(first, step, one))(scores)

        def log_partition(unary: Any, trans: Any) -> Any:
            found = over_batch(lambda *given: inference.hmm_filter(*given).marginal_loglik, unary, trans)
            return found + steps * jax.lax.stop_gradient(trans.max()) if self.relative else found

        def marginals(unary: Any, trans: Any) -> Any:
            call = getattr(inference, self.smoother)
            found = over_batch(lambda *given: call(*given).smoothed_probs, unary, trans)[..., :labels]
            return jnp.where(padding, 0.0, found) if case.ragged else found

        def best(unary: Any, trans: Any) -> Any:
            found = over_batch(inference.hmm_posterior_mode, unary, trans)
            return jnp.where(padding[..., 0], -1, found) if case.ragged else found

        tasks = {LOG_PARTITION: log_partition, MARGINALS: marginals, VITERBI: best, NLL: _loss(log_partition, case)}
        return _prepared(tasks[task], _array(case.unary), _array(case.trans))


class DynamaxRelative(Dynamax):
    """dynamax on transitions relative to the best of them: slower, and right at larger scores."""

    relative = True


class DynamaxTwoFilter(Dynamax):
    """dynamax's other smoother; all else would be the same."""

    name = "dynamax two-filter"
    smoother = "hmm_two_filter_smoother"

    def prepare(self, case: Case, task: str) -> Prepared:
        from benchmarks.exact.contestants import Refused

        if task != MARGINALS:
            raise Refused("the same as dynamax")
        return super().prepare(case, task)


class Synjax:
    """synjax's `LinearChainCRF`, jitted; it takes lengths."""

    name, kind, whole = "synjax", JAX, True

    def prepare(self, case: Case, task: str) -> Prepared:
        from synjax import LinearChainCRF

        lengths, mask = _array(case.ends.int()), _array(case.mask)[..., None]

        def chain(unary: Any, trans: Any) -> Any:
            # [B, T, earlier, later]; the first cell's scores are the first row of its table
            edges = trans + unary[:, :, None, :]
            return LinearChainCRF(edges.at[:, 0, 0].set(unary[:, 0]), lengths=lengths)

        def log_partition(unary: Any, trans: Any) -> Any:
            return chain(unary, trans).log_partition()

        def marginals(unary: Any, trans: Any) -> Any:
            # as `marginals()` does it; that method's own type check fails with the jaxtyping that dynamax needs
            return jax.grad(lambda scores: log_partition(scores, trans).sum())(unary)

        def best(unary: Any, trans: Any) -> Any:
            return jnp.where(mask[..., 0], chain(unary, trans).argmax().sum(2).argmax(-1), -1)

        tasks = {LOG_PARTITION: log_partition, MARGINALS: marginals, VITERBI: best, NLL: _loss(log_partition, case)}
        return _prepared(tasks[task], _array(case.unary), _array(case.trans))
