"""Measuring kernels: timing in alternation, with spread."""
