"""HAMi's annotation language, both ways. Text in, values out, and back; nothing else."""
