def epilogue(acc, cap):
    """Tanh soft cap: y = cap * tanh(acc / cap), which keeps every value within (-cap, cap)."""
    cap = load_scalar(cap)
    store(y, cap * tanh(acc / cap))
