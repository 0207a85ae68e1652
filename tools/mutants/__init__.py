"""Mutants: small faults put into the core one at a time, to see whether the tests find them.

| file                     | what it has                                                                  |
| ------------------------ | ---------------------------------------------------------------------------- |
| `faults.py`              | the faults that a file can have: operators, conditions, numbers, dropped calls |
| `running.py`             | the tests with one fault in place, in a process of their own                 |
| `hook/sitecustomize.py`  | how a process, and every Python that it starts, imports the faulty file      |
| `kept.py`                | what an earlier run has found out already                                    |
| `equivalent.txt`         | faults that change nothing a user could see, with the reason                 |
| `__main__.py`            | the command: a sample of faults, and the share that was found                |

No file of the package is ever written to.
"""
