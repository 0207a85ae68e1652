"""Constraints where people already train. Each part is imported by its name, and needs an extra of that name.

| module | for |
| --- | --- |
| `nupi.integrations.transformers` | the Trainer of Hugging Face, and trainers made of it, as TRL's |
| `nupi.integrations.sklearn` | a classifier with the interface of scikit-learn |
| `nupi.integrations.lightning` | Lightning, as `lightning` or `pytorch_lightning` |
"""
