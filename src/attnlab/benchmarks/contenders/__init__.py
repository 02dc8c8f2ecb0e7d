"""What is measured: the lab's own and what a person would pick instead."""
