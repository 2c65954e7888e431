#!/bin/sh
# Writes lock-*.txt: everything that the images install, pinned by hash. `make locks` runs it.
#
#   sh deploy/docker/lock.sh UV
set -eu
uv=$(command -v "$1")
cd "$(dirname "$0")/../.."

# What follows says what is to be pinned; the versions are those of constraints.txt.
lock() {
  file="deploy/docker/lock-$1.txt"
  shift
  "$uv" pip compile "$@" --constraint constraints.txt --generate-hashes --no-annotate --quiet \
    --python-version 3.11 --python-platform x86_64-manylinux_2_31 \
    --custom-compile-command "make locks" --output-file "$file"
}

lock cpu pyproject.toml --extra serve --extra train
lock tpu pyproject.toml --extra tpu --extra train
python3 -c 'import tomllib
with open("pyproject.toml", "rb") as file:
    print(*tomllib.load(file)["build-system"]["requires"], sep="\n")' | lock build -
