"""The paper's analysis: nuPI beside momentum and gradient ascent, its spectrum, and bilinear games."""
