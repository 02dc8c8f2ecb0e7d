"""What happens inside one call of a patient: every operation on a tape, and the attentions among them."""
