"""The problems a benchmark runs by default: the paper's, and those of known models."""

from __future__ import annotations

from dataclasses import dataclass

#: Tokens and vocabulary of the paper's benchmarks.
TOKENS = 16384
VOCABULARY = 32768
WIDTHS = (2048, 4096, 8192)


@dataclass(frozen=True)
class Model:
    """Sizes of a Transformer block: width, feed-forward width, columns of the fused QKV projection, vocabulary."""

    name: str
    d: int
    ff: int
    qkv: int
    vocabulary: int


def paper(d: int) -> Model:
    """The paper's block of width d; feed-forward widths as Llama has them."""
    ff = {2048: 5632, 4096: 11008, 8192: 22016}.get(d, -(-d * 8 // 3 // 256) * 256)
    return Model(f"d{d}", d, ff, 3 * d, VOCABULARY)


MODELS = {
    model.name: model
    for model in (
        Model("llama3-8b", 4096, 14336, 6144, 128256),
        Model("llama3-70b", 8192, 28672, 10240, 128256),
        Model("qwen3-8b", 4096, 12288, 6144, 151936),
        Model("qwen3-32b", 5120, 25600, 10240, 151936),
    )
}

_GATED = {"swiglu", "rmsnorm_swiglu", "geglu"}
_QKV = {"rope", "rmsnorm_rope"}
_HEAD = {"cross_entropy", "rmsnorm_cross_entropy", "softcap"}
_WIDE = {"gelu", "relu2"}


def problem(operator: str, model: Model) -> tuple[int, int]:
    """(N, K) of the GEMM that the operator is the epilogue of, in a block of these sizes.

    An operator that is not of the catalogue is measured on the square d by d projection.
    """
    if operator in _GATED:
        return 2 * model.ff, model.d
    if operator in _QKV:
        return model.qkv, model.d
    if operator in _HEAD:
        return model.vocabulary, model.d
    if operator in _WIDE:
        return model.ff, model.d
    if operator == "swiglu_backward":
        return model.ff, model.d
    if operator == "residual_rmsnorm_backward":
        return model.d, 2 * model.ff
    return model.d, model.d
