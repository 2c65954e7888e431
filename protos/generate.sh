#!/bin/sh
# Generates protos/blockdraft_protos from protos/blockdraft; `generate.sh DIR` writes below DIR.
# The wire package is `blockdraft.v1`, but Python imports `blockdraft_protos.v1`: protoc reads copies
# in a folder of that name, which import one another by it.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here}
cd "$here"
copies=$(mktemp -d)
trap 'rm -rf "$copies"' EXIT
mkdir -p "$copies/blockdraft_protos/v1"
for proto in blockdraft/v1/*.proto; do
  sed 's|^import "blockdraft/|import "blockdraft_protos/|' "$proto" > "$copies/blockdraft_protos/v1/${proto##*/}"
done
"${PYTHON:-python}" -m grpc_tools.protoc \
  "-I$copies" \
  "--python_out=$out" "--grpc_python_out=$out" "--mypy_out=quiet:$out" "--mypy_grpc_out=quiet:$out" \
  "$copies"/blockdraft_protos/v1/*.proto
# Of vLLM's protocol, other people's names; these two do import one another.
"${PYTHON:-python}" -m grpc_tools.protoc \
  "-Iblockdraft_protos/vllm=vllm" \
  "--python_out=$out" "--grpc_python_out=$out" "--mypy_out=quiet:$out" "--mypy_grpc_out=quiet:$out" \
  vllm/common.proto vllm/vllm_engine.proto
for package in v1 vllm; do
  mkdir -p "$out/blockdraft_protos/$package"
  : > "$out/blockdraft_protos/$package/__init__.py"
done
