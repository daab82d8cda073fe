"""`python -m alphorn` is the `alphorn` command."""

from alphorn.cli.main import main

if __name__ == "__main__":
    main()
