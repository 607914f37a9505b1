def epilogue(acc, target, ignore_index):
    """Cross entropy of logits = acc: the target's logit t and the row's lse = logsumexp(acc); loss = lse - t."""
    columns = col_index()
    target = load_col(target)
    t = row_sum(where((columns == target) & (target != load_scalar(ignore_index)), acc, 0.0))
    lse = online_logsumexp(where(columns < num_cols(), acc, -inf))
    store(logits, acc)
    store(t, t)
    store(lse, lse)
