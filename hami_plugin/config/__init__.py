"""Configuration: files, environment and flags become one validated, frozen ``Settings``. pydantic stays here."""
