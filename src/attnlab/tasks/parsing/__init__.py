"""The `parsing` task: write the tree of a sentence."""
