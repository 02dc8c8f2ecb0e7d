"""Studies: variants x seeds under rules fixed beforehand, from question to verdict."""
