"""Tensors of the protocol: how a model is cut, encoded, merged, stepped and adopted. No I/O here."""
