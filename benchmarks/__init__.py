"""Speed beside Cooper and hand-written loops. Everything compared is timed in turns within one run."""
