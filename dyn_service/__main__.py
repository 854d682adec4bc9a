"""`python -m dyn_service` is the command `dyn`."""

from dyn_service.cli.main import main

if __name__ == "__main__":
    main()
