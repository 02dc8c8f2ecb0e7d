"""Where things are kept beside runs: the user's cache, object stores, and a cache that machines share."""
