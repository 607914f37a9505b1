def epilogue(acc):
    """Squared ReLU: y = relu(acc) ** 2."""
    store(y, relu(acc) ** 2)
