"""The six axes of an attention layer, one file each: an abstract class, its entries, one table."""
