"""Attention under any temperature rule: the mathematics, the layers, the rules, and what makes it fast on a CPU."""
