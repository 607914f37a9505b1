def epilogue(acc, z):
    """Backward of SwiGLU, from the gradient acc of its output: dz, its row sum zdz with z, and y recomputed."""
    g, u = even_odd(load_tile(z))
    sigma = sigmoid(g)
    silu_g = silu(g)
    dg = acc * u * (sigma + silu_g * (1 - sigma))
    du = acc * silu_g
    dz = interleave(dg, du)
    zdz = row_sum(g * dg + u * du)
    y = silu_g * u
    store(dz, dz)
    store(zdz, zdz)
    store(y, y)
