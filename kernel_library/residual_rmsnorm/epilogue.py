def epilogue(acc, c, w):
    """Residual add and the first half of RMSNorm: x = acc + c, its sum of squares s, and h = x * w."""
    x = acc + load_tile(c)
    s = row_sum(x * x)
    h = x * load_row(w)
    store(x, x)
    store(s, s)
    store(h, h)
