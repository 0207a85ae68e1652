"""Judge the findings of a monitor as a classifier: runs whose truth is known, and how often it is found."""
