"""unpack.py FOLDER NAME TARGET: writes the member NAME of the wheel or source archive in FOLDER to TARGET."""

import pathlib
import shutil
import sys
import tarfile
import zipfile


def members(archive):
    """Yields (name, opener) for every file of a wheel, zip or tar archive."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as opened:
            for name in opened.namelist():
                yield name, lambda name=name: opened.open(name)
    elif tarfile.is_tarfile(archive):
        with tarfile.open(archive) as opened:
            for member in opened:
                if member.isfile():
                    yield member.name, lambda member=member: opened.extractfile(member)


def main():
    folder, wanted, target = sys.argv[1:]
    for archive in sorted(pathlib.Path(folder).iterdir()):
        for name, open_member in members(archive):
            if name.rsplit("/", 1)[-1] == wanted:
                with open_member() as source, open(target, "wb") as sink:
                    shutil.copyfileobj(source, sink)
                return 0
    print(f"unpack: no {wanted} in {folder}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
