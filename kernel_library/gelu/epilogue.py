def epilogue(acc, b):
    """Add a bias, then GELU: y = gelu(acc + b)."""
    store(y, gelu(acc + load_row(b)))
