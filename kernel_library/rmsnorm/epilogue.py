def epilogue(acc, r):
    """The second half of RMSNorm: z = acc * r, each row scaled by its reciprocal RMS."""
    store(z, acc * load_col(r))
