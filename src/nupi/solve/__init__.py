"""The functional solver and the batched sweep. Import them from `nupi`: `nupi.minimize`, `nupi.sweep`.

They live in a package of another name so that `nupi.minimize` and `nupi.sweep` are always the functions and
never modules.
"""
