"""What the project needs beside the package: mutants, and the check of a wheel."""
