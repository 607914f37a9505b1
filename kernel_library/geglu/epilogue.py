def epilogue(acc):
    """GEGLU over interleaved columns: y = gelu(even columns) * odd columns."""
    gate, up = even_odd(acc)
    store(y, gelu(gate) * up)
