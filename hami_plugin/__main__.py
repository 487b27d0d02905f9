"""``python -m hami_plugin`` is the ``hami-plugin`` command."""

from hami_plugin.cli import main

if __name__ == "__main__":
    main()
