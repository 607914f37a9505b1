# ruff: noqa: F821 - primitives and the names of outputs belong to the epilogue language
def epilogue(acc, b, alpha):
    z = acc + load_row(b)
    gate, up = even_odd(z)
    store(z, z)
    store(y, gate * sigmoid(load_scalar(alpha) * gate) * up)
