"""What an output is made of: parts of the stream that add up to it, and inputs that it hangs on."""
