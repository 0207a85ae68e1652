"""Mutation testing: put small faults into the core, one at a time, and check whether the tests find them.

Cosmic-ray makes the faults. Its own test runner writes to the files of the package, and starts a new process for each
mutant; this one does neither.

| file                     | what it has                                                                  |
| ------------------------ | ---------------------------------------------------------------------------- |
| `operators.py`           | operators for cosmic-ray that it lacks: dropped statements, fixed conditions |
| `faults.py`              | the mutants of a file, without those that change nothing but types           |
| `running.py`             | the tests with one fault in place, in a process of their own                 |
| `hook/sitecustomize.py`  | how a process, and every Python that it starts, imports the faulty file      |
| `kept.py`                | the results of earlier runs                                                  |
| `equivalent.txt`         | faults without an effect that a user could see, with the reason              |
| `__main__.py`            | the command: a sample of faults, and the share that was found                |

No file of the package is ever written to.
"""
