"""Tools for developers: mutants, the site, and the check of a wheel."""
