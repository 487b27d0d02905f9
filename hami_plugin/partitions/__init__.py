"""The life of partitions that this node makes: no partition is lost, none has two owners, none of others is touched."""
