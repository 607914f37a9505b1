def epilogue(acc, r, cos, sin):
    """The second half of RMSNorm, then rotary embedding: z = acc * r, y = rope(z)."""
    z = acc * load_col(r)
    a, b = even_odd(z)
    cos_tile = load_tile(cos)
    sin_tile = load_tile(sin)
    y = interleave(a * cos_tile + b * sin_tile, b * cos_tile - a * sin_tile)
    store(z, z)
    store(y, y)
