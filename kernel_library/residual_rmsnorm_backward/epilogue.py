def epilogue(acc, c, w, r, zdz, o):
    """Backward of residual add and RMSNorm, from the gradient acc of the norm's output."""
    w = load_row(w)
    r = load_col(r)
    n = load_tile(c) * r
    o_out = load_tile(o) + (acc * w - n * load_col(zdz)) * r
    h = n * w
    dw = col_sum(acc * n)
    store(o_out, o_out)
    store(h, h)
    store(dw, dw)
