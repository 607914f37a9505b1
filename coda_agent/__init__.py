"""coda-agent: fused GEMM-epilogue GPU kernels, written by a model or derived, verified, and committed to a library."""

__version__ = "0.1.0"
