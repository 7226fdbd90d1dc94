"""`python -m gradlab`."""

from gradlab.app import main

if __name__ == "__main__":
    main()
