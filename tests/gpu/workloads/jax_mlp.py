# SPDX-License-Identifier: Apache-2.0
"""Trains an MLP with jax.jit, beside --state-gib of memory of which every step changes every word."""
import functools
import os

# XLA ends a process that names a flag which it does not know; run.py finds out which ones it knows.
os.environ["XLA_FLAGS"] = os.environ.get("GPUMUX_TEST_XLA_FLAGS", "--xla_gpu_deterministic_ops=true")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import common  # noqa: E402

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy  # noqa: E402

SIZES = (1024, 4096, 4096, 100)


def forward(weights, x):
    for w in weights[:-1]:
        x = jnp.tanh(x @ w)
    return x @ weights[-1]


def loss(weights, x, y):
    return jnp.mean((forward(weights, x) - y) ** 2)


@jax.jit
def update(weights, x, y):
    value, gradients = jax.value_and_grad(loss)(weights, x, y)
    return [w - 0.01 * g for w, g in zip(weights, gradients)], value


@functools.partial(jax.jit, donate_argnums=0)
def advance(state):
    return state * jnp.uint32(5) + jnp.uint32(1)


class Training:
    def __init__(self, seed, state_gib):
        if jax.devices()[0].platform == "cpu":
            raise SystemExit("JAX sees no GPU")
        random = numpy.random.default_rng(seed)
        self.weights = [jnp.asarray(random.standard_normal((a, b), dtype=numpy.float32) / a ** 0.5)
                        for a, b in zip(SIZES, SIZES[1:])]
        self.batches = [(jnp.asarray(random.standard_normal((512, SIZES[0]), dtype=numpy.float32)),
                         jnp.asarray(random.standard_normal((512, SIZES[-1]), dtype=numpy.float32))) for _ in range(4)]
        self.state = jnp.arange(round(state_gib * 2**28), dtype=jnp.uint32)
        self.last = None

    def step(self, i):
        self.weights, self.last = update(self.weights, *self.batches[i % 4])
        if self.state.size:
            self.state = advance(self.state)

    def wait(self):
        self.last.block_until_ready()
        self.state.block_until_ready()

    def digest(self):
        sums = numpy.asarray(jnp.sum(self.state, dtype=jnp.uint32))
        return b"".join(numpy.asarray(w).tobytes() for w in self.weights) + sums.tobytes()

    def peak_bytes(self):
        return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)


if __name__ == "__main__":
    arguments = common.options(state_gib=0.0)
    common.run(Training(arguments.seed, arguments.state_gib), arguments)
