"""Epilogues of catalogue operators, written by hand."""

from __future__ import annotations

EPILOGUES = {
    "swiglu": """def epilogue(acc):
    gate, up = even_odd(acc)
    store(z, acc)
    store(y, silu(gate) * up)
""",
    "rmsnorm_swiglu": """def epilogue(acc, r):
    z = acc * load_col(r)
    gate, up = even_odd(z)
    y = silu(gate) * up
    store(z, z)
    store(y, y)
""",
    "rope": """def epilogue(acc, cos, sin):
    a, b = even_odd(acc)
    c = load_tile(cos)
    s = load_tile(sin)
    store(z, acc)
    store(y, interleave(a * c + b * s, b * c - a * s))
""",
    "residual_rmsnorm": """def epilogue(acc, c, w):
    x = acc + load_tile(c)
    store(x, x)
    store(s, row_sum(x * x))
    store(h, x * load_row(w))
""",
    "rmsnorm_cross_entropy": """def epilogue(acc, r, target, ignore_index):
    logits = acc * load_col(r)
    t = load_col(target)
    hit = (col_index() == t) & (t != load_scalar(ignore_index))
    store(logits, logits)
    store(t, row_sum(where(hit, logits, 0.0)))
    store(lse, online_logsumexp(where(col_index() < num_cols(), logits, -inf)))
""",
    "gelu": """def epilogue(acc, b):
    store(y, gelu(acc + load_row(b)))
""",
    "softcap": """def epilogue(acc, cap):
    cap = load_scalar(cap)
    store(y, cap * tanh(acc / cap))
""",
    "residual_rmsnorm_backward": """def epilogue(acc, c, w, r, zdz, o):
    r = load_col(r)
    w = load_row(w)
    n = load_tile(c) * r
    store(o_out, load_tile(o) + (acc * w - n * load_col(zdz)) * r)
    store(h, n * w)
    store(dw, col_sum(acc * n))
""",
    "swiglu_backward": """def epilogue(acc, z):
    g, u = even_odd(load_tile(z))
    sig = sigmoid(g)
    act = g * sig
    dg = acc * u * (sig + act * (1 - sig))
    du = acc * act
    store(dz, interleave(dg, du))
    store(zdz, row_sum(g * dg + u * du))
    store(y, act * u)
""",
}
