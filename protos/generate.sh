#!/bin/sh
# Generates protos/blockdraft_protos from protos/blockdraft; `generate.sh DIR` writes below DIR.
# protoc's virtual path keeps the wire package `blockdraft.v1` while Python imports
# `blockdraft_protos.v1`; it is why the .proto files do not import one another.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here}
cd "$here"
for proto in blockdraft/v1/*.proto; do
  "${PYTHON:-python}" -m grpc_tools.protoc \
    "-Iblockdraft_protos=blockdraft" \
    "--python_out=$out" "--grpc_python_out=$out" "--mypy_out=quiet:$out" "--mypy_grpc_out=quiet:$out" \
    "$proto"
done
# Of vLLM's protocol, other people's names; these two do import one another.
"${PYTHON:-python}" -m grpc_tools.protoc \
  "-Iblockdraft_protos/vllm=vllm" \
  "--python_out=$out" "--grpc_python_out=$out" "--mypy_out=quiet:$out" "--mypy_grpc_out=quiet:$out" \
  vllm/common.proto vllm/vllm_engine.proto
for package in v1 vllm; do
  mkdir -p "$out/blockdraft_protos/$package"
  : > "$out/blockdraft_protos/$package/__init__.py"
done
