"""What the node says of itself at the API server: annotations, Events, occupancy."""
