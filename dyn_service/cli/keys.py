"""`dyn keys`: keys of clients that may use a server from other machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dyn_service.cli.console import Json, say, say_json
from dyn_service.errors import InvalidArgumentError

app = typer.Typer(help="Manage the keys of a server and of its clients.", no_args_is_help=True)

_Folder = Annotated[
    str,
    typer.Option(
        "--folder",
        metavar="DIR",
        help="The keys' folder. (default: $DYN_SERVICE_KEYS, else ~/.config/dyn_service/keys)",
    ),
]


@app.command()
def new(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Whose key it is.")] = None,
    role: Annotated[str, typer.Option(help="What it may do: query, load or admin.")] = "query",
    server: Annotated[bool, typer.Option("--server", help="Make the server's own key pair.")] = False,
    public: Annotated[
        str, typer.Option(metavar="KEY", help="The public key, if the client created the key pair.")
    ] = "",
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to write the key. (default: in DIR)")
    ] = None,
    folder: _Folder = "",
) -> None:
    """Make a key and give its holder access."""
    from dyn_service.service.server.administration.access import ROLES, KeyFolder

    keys = KeyFolder(folder)
    if server == (name is not None):
        raise InvalidArgumentError("give the NAME of the key's holder, or --server", path="name")
    if name is None:
        say(f"made {keys.server_file}; its public key is {keys.make_server().public}")
        return
    if role not in ROLES:
        raise InvalidArgumentError(f"--role must be one of {', '.join(ROLES)}, found '{role}'", path="role")
    file = keys.make(name, ROLES[role], public=public, destination=output)
    notice = f"made {file}: give it to {name} and keep no copy" if file else f"{name} has access now"
    say(f"{notice}; server: {keys.server_keys().public}")


@app.command("list")
def list_(folder: _Folder = "", json_output: Json = False) -> None:
    """List the keys with and without access."""
    from dyn_service.service.server.administration.access import KeyFolder

    entries = list(KeyFolder(folder).entries().values())
    if json_output:
        rows = [
            {
                "name": key.name,
                "role": key.role.name.lower(),
                "public": key.public,
                "since": str(key.added_on),
                "revoked": str(key.revoked) if key.revoked else None,
            }
            for key in entries
        ]
        say_json(rows)
        return
    for key in entries:
        end = f"revoked {key.revoked}" if key.revoked else f"since {key.added_on}"
        say(f"{key.name:<24} {key.role.name.lower():<6} {end}")


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose key it is, see `dyn keys list`.")],
    folder: _Folder = "",
) -> None:
    """Take a key's access away; running servers close its connections within a second."""
    from dyn_service.service.server.administration.access import KeyFolder

    say(f"{name} no longer has access, revoked {KeyFolder(folder).revoke(name).revoked}")


@app.command()
def show(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="(default: the server)")] = None,
    folder: _Folder = "",
) -> None:
    """Print a public key. No command prints a secret one."""
    from dyn_service.errors import NotFoundError
    from dyn_service.service.server.administration.access import KeyFolder

    keys = KeyFolder(folder)
    if name is None:
        if not keys.server_file.exists():
            raise NotFoundError(
                f"there are no keys in {keys.folder} yet: dyn keys new --server makes the server's", path="keys"
            )
        say(keys.server_keys().public)
        return
    entries = keys.entries()
    if name not in entries:
        raise NotFoundError(f"there is no key '{name}'; the keys are {', '.join(entries) or 'none'}", path="name")
    say(entries[name].public)
