"""Gates on the heads and MLP units of transformers, whose blocks are known by their structure."""
