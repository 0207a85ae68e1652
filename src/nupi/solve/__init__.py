"""The functional solver and the batched sweep. Import them from `nupi`: `nupi.minimize`, `nupi.sweep`.

The package has another name so that `nupi.minimize` and `nupi.sweep` are always functions, never modules.
"""
