"""Constraints in other training frameworks. Import each module by its name; it needs the extra of the same name.

| module | for |
| --- | --- |
| `nupi.integrations.transformers` | the Trainer of Hugging Face, and trainers built on it, such as TRL's |
| `nupi.integrations.sklearn` | a classifier with the interface of scikit-learn |
| `nupi.integrations.lightning` | Lightning, as `lightning` or `pytorch_lightning` |
"""
