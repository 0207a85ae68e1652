"""The hard-margin SVM experiment of the paper: its problem, its ground truth, and the targets `svm-*`."""
