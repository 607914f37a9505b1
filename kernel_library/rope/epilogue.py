def epilogue(acc, cos, sin):
    """Rotary embedding of interleaved column pairs (a, b): (a * cos + b * sin, b * cos - a * sin)."""
    a, b = even_odd(acc)
    cos_tile = load_tile(cos)
    sin_tile = load_tile(sin)
    y = interleave(a * cos_tile + b * sin_tile, b * cos_tile - a * sin_tile)
    store(z, acc)
    store(y, y)
