"""Questions that HAMi's own code has answered, asked of ours. Adapter ring: reads files, prints nothing itself."""
