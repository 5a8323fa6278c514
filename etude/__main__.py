"""`python -m etude`: the same as the `etude` command."""

from etude.cli.main import main

if __name__ == "__main__":
    main()
