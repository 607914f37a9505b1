def epilogue(acc, r, target, ignore_index):
    """The second half of RMSNorm, then cross entropy of logits = acc * r; loss = lse - t."""
    logits = acc * load_col(r)
    columns = col_index()
    inside = columns < num_cols()
    target = load_col(target)
    chosen = (columns == target) & (target != load_scalar(ignore_index))
    t = row_sum(where(inside & chosen, logits, 0.0))
    lse = online_logsumexp(where(inside, logits, -inf))
    store(logits, logits)
    store(t, t)
    store(lse, lse)
