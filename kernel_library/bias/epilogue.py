def epilogue(acc, b):
    """Add a bias: y = acc + b."""
    store(y, acc + load_row(b))
