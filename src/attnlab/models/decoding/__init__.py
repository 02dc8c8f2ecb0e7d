"""Writing with a trained model: beam search and sampling."""
