"""``python -m eigenlens``: the command line."""

from eigenlens.cli import main

if __name__ == "__main__":
    main()
