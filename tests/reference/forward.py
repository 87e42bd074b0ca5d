"""Products with Jacobians and second derivatives, whole matrices of them and functions over batches, as JAX computes them, in f64.

Prints what `forward.json` holds. Needs jax; written with the version that the file names.
"""

import json
import math

import jax
import jax.numpy as jnp
from jax import lax

jax.config.update("jax_enable_x64", True)
rows = []


def generic(*shape, lift=0.0, scale=1.0, seed=0):
    """Numbers without ties that are no corner of anything."""
    n = math.prod(shape)
    values = [((i * 37 + 11 + seed * 5) % 101) / 40 - 1.2625 + i / 1024 for i in range(n)]
    return jnp.array(values, dtype=jnp.float64).reshape(shape) * scale + lift


def numbers(t):
    return [float(v) for v in jnp.asarray(t, dtype=jnp.float64).flatten()]


def tensor(t):
    return {"shape": list(t.shape), "data": numbers(t)}


def loss_of(f):
    def loss(*x):
        y = f(*x)
        return jnp.sum(y * (1 + jnp.arange(y.size).reshape(y.shape) / 4))

    return loss


def case(name, f, *operands):
    """`f` at `operands`: its tangent, its Jacobian by the first, and the same of the gradient of its weighted sum."""
    tangents = tuple(generic(*x.shape, scale=0.5, seed=3 + k) for k, x in enumerate(operands))
    loss = loss_of(f)
    every = tuple(range(len(operands)))
    slope = jax.grad(loss, argnums=every)
    y, t = jax.jvp(f, operands, tangents)
    rows.append(
        {
            "name": name,
            "operands": [tensor(x) for x in operands],
            "tangents": [numbers(t) for t in tangents],
            "value": numbers(y),
            "tangent": numbers(t),
            "hvp": [numbers(h) for h in jax.jvp(slope, operands, tangents)[1]],
            "jacobian": numbers(jax.jacfwd(f)(*operands)),
            "hessian": numbers(jax.hessian(loss)(*operands)),
        }
    )


batches = []


def batch(name, f, axes, *operands):
    """`f` and its gradient by the operands that are shared, over a batch."""
    every = tuple(range(len(operands)))
    found = jax.vmap(f, in_axes=axes)(*operands)
    slopes = jax.vmap(jax.grad(loss_of(f), argnums=every), in_axes=axes)(*operands)
    batches.append(
        {
            "name": name,
            "operands": [tensor(x) for x in operands],
            "axes": axes,
            "value": numbers(found),
            "gradients": [numbers(d) for d in slopes],
        }
    )


def repeated(x, w):
    return lax.fori_loop(0, 3, lambda i, h: jnp.tanh(h @ w) + h * i, x)


def scanned(x, w):
    def step(h, row):
        h = jnp.sin(h * w) + row
        return h, h**2

    last, all = lax.scan(step, w, x)
    return jnp.concatenate([last[None], all])


def newton(a):
    """The root of each element: a loop that nothing bounds, which has no derivative in reverse mode."""

    def step(x):
        return (x + a / x) / 2

    return lax.while_loop(lambda x: jnp.max(jnp.abs(x * x - a)) > 1e-12, step, a)


def grown(x, most):
    """A count of iterations for each example."""
    return lax.while_loop(lambda s: s[1] < most, lambda s: (s[0] ** 2 * 0.5 + most * 0.01, s[1] + 1.0), (x, 0.0))[0]


m, v = generic(3, 4), generic(4, seed=1)
case("softmax", lambda x: jax.nn.softmax(x, axis=1), m)
case("log_softmax", lambda x: jax.nn.log_softmax(x, axis=0), m)
case("logsumexp", lambda x: jax.nn.logsumexp(x, axis=1), m)
case("prod", lambda x: jnp.prod(x, axis=1), m)
case("cumsum_of_exp", lambda x: jnp.cumsum(jnp.exp(x), axis=1), m)
case("cumprod", lambda x: jnp.cumprod(x, axis=1), m)
case("sort", lambda x: jnp.sort(x, axis=1) ** 3, m)
case("max", lambda x: jnp.max(x, axis=0) ** 2, m)
case("min_of_ties", lambda x: jnp.min(jnp.round(x), axis=1) + jnp.sum(x * x, axis=1), m)
case("sine_of_product", lambda a, b: jnp.sin(a @ b), m, generic(4, 2, seed=2))
case("bilinear", lambda a, b, c: jnp.einsum("ij,jk,k->i", a, b, c), generic(2, 3), generic(3, 4, seed=4), v)
case("norm", lambda x: jnp.sqrt(jnp.sum(x * x, axis=1)), m)
case("power", lambda a, b: a**b, generic(5, lift=2.0), generic(5, seed=6))
case("atan2", lambda a, b: jnp.arctan2(a, b), generic(5), generic(5, seed=6))
case("quotient", lambda a, b: a / b, generic(5), generic(5, lift=3.0))
case("erf", lambda x: jax.scipy.special.erf(x), v)
case("take", lambda x: x[jnp.array([2, 0, 2])] ** 2, m)
case("scatter_add", lambda x, u: x.at[jnp.array([2, 0, 2])].add(u) ** 3, v, generic(3))
case("scatter_set", lambda x, u: x.at[jnp.array([2, 0])].set(u) ** 3, v, generic(2))
case("scatter_mul", lambda x, u: x.at[jnp.array([2, 0, 1])].mul(u, unique_indices=True) ** 2, v, generic(3))
case("where", lambda a, b: jnp.where(a < b, a * b, jnp.exp(a)), v, generic(4, seed=9))
case("pad_and_slice", lambda x: jnp.pad(x, ((1, 0), (0, 2)))[:, ::2] ** 2 * 3, m)
case("determinant", lambda x: jnp.linalg.det(x)[None], generic(3, 3, seed=2))
case("silu", lambda x: jax.nn.silu(x), v)
case("gelu", lambda x: jax.nn.gelu(x, approximate=False), v)
case("repeated", repeated, generic(2, 3, scale=0.5), generic(3, 3, seed=2, scale=0.5))
case("scanned", scanned, generic(3, 2), generic(2, seed=2))

a = generic(3, lift=3.0)
t = generic(3, seed=3)
y, moved = jax.jvp(newton, (a,), (t,))
unbounded = {"operand": numbers(a), "tangent": numbers(t), "value": numbers(y), "moved": numbers(moved)}

three = generic(3, 2, 4, seed=5)
batch("matmul", lambda w, x: jnp.tanh(x @ w), (None, 0), generic(4, 2), three)
batch("matmul", lambda w, x: jnp.tanh(x @ w), (0, None), generic(3, 4, 2), three[0])
batch("matmul", lambda w, x: jnp.tanh(x @ w), (2, 1), generic(4, 2, 3), generic(2, 3, 4))
batch("softmax", lambda x: jax.nn.softmax(x, axis=1), (0,), three)
batch("cumprod", lambda x: jnp.cumprod(x, axis=1), (0,), three)
batch("sort", lambda x: jnp.sort(x, axis=1) ** 3, (2,), three)
batch("scatter_add", lambda x, u: x.at[jnp.array([2, 0, 2])].add(u) ** 3, (0, None), generic(3, 4), generic(3))
batch("scatter_set", lambda x, u: x.at[jnp.array([2, 0])].set(u) ** 3, (None, 1), generic(4), generic(2, 3))
batch("repeated", repeated, (0, None), generic(3, 2, 3, scale=0.5), generic(3, 3, seed=2, scale=0.5))
batch("scanned", scanned, (0, 0), generic(4, 3, 2), generic(4, 2, seed=2))

x, most = generic(4, lift=1.0), jnp.array([0.0, 3.0, 1.0, 5.0])
differing = {
    "operands": [numbers(x), numbers(most)],
    "value": numbers(jax.vmap(grown)(x, most)),
    "moved": numbers(jax.vmap(lambda x, m: jax.jvp(grown, (x, m), (1.0, 2.0))[1])(x, most)),
}

lines = lambda all: "[\n" + ",\n".join("  " + json.dumps(row) for row in all) + "\n]"
print('{"jax": %s,' % json.dumps(jax.__version__))
print('"rows": %s,\n"batches": %s,' % (lines(rows), lines(batches)))
print('"unbounded": %s,\n"differing": %s}' % (json.dumps(unbounded), json.dumps(differing)))
