def epilogue(acc):
    """SwiGLU over interleaved columns: y = silu(even columns) * odd columns."""
    gate, up = even_odd(acc)
    y = silu(gate) * up
    store(z, acc)
    store(y, y)
