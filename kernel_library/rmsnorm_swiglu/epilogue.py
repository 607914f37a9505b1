def epilogue(acc, r):
    """The second half of RMSNorm, then SwiGLU: z = acc * r, y = silu(even z) * odd z."""
    z = acc * load_col(r)
    gate, up = even_odd(z)
    y = silu(gate) * up
    store(z, z)
    store(y, y)
