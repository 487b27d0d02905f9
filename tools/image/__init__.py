"""The container image: a Debian base, what requirements.lock pins, the project, and a builder that packs them."""
