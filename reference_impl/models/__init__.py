"""One file a family: its config, its layer, its model."""
