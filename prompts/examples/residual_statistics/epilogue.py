# ruff: noqa: F821 - primitives and the names of outputs belong to the epilogue language
def epilogue(acc, c, r, b, index):
    column = col_index() < num_cols()
    row = row_index() < num_rows()
    x = acc * load_col(r) + load_tile(c) + load_row(b)
    inside = where(column, x, -inf)
    store(x, x)
    store(spread, row_sum(x * x))
    store(chosen, pick(x, load_col(index)))
    store(peak, running_max(inside))
    store(lse, online_logsumexp(inside))
    store(mass, col_sum(where(row, sigmoid(x), 0.0)))
