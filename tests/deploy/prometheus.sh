#!/bin/sh
# Puts Debian's prometheus and promtool into FOLDER/bin, without installing anything.
#
#   sh tests/deploy/prometheus.sh FOLDER
#
# PyPI has neither. Where apt cannot fetch the package, the tests that need them are skipped.
set -eu
folder=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if (cd "$scratch" && apt-get -qq download prometheus && dpkg-deb -x prometheus_*.deb .) 2>&1; then
  cp "$scratch/usr/bin/prometheus" "$scratch/usr/bin/promtool" "$folder/bin/"
else
  echo "apt has no package prometheus here: the tests of the rules will be skipped" >&2
fi
