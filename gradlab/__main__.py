"""`python -m gradlab`."""

from gradlab.cli.main import main

if __name__ == "__main__":
    main()
