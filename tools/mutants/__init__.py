"""Mutants: small faults put into the core one at a time, to see whether the tests find them.

Cosmic-ray makes them. Its own way to run tests writes to the files of the package and starts a process for each mutant;
this one does neither.

| file                     | what it has                                                                  |
| ------------------------ | ---------------------------------------------------------------------------- |
| `operators.py`           | operators for cosmic-ray that it lacks: dropped statements, fixed conditions |
| `faults.py`              | the mutants of a file, without those that change nothing but types           |
| `running.py`             | the tests with one fault in place, in a process of their own                 |
| `hook/sitecustomize.py`  | how a process, and every Python that it starts, imports the faulty file      |
| `kept.py`                | what an earlier run has found out already                                    |
| `equivalent.txt`         | faults that change nothing a user could see, with the reason                 |
| `__main__.py`            | the command: a sample of faults, and the share that was found                |

No file of the package is ever written to.
"""
