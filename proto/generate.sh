#!/usr/bin/env bash
# Writes the generated Go (beside the .proto files) and Python (python/dflash_runner/pb).
# Wants python3; makes a throw-away environment for protoc. Generated code is committed.
set -euo pipefail
cd "$(dirname "$0")/.."
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
python3 -m venv "$tmp/venv"
"$tmp/venv/bin/pip" install -q grpcio-tools==1.80.0
go build -o "$tmp/" google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc
files=$(cd proto && find dflash_runner -name '*.proto' | sort)
# shellcheck disable=SC2086
PATH="$tmp:$PATH" "$tmp/venv/bin/python" -m grpc_tools.protoc -Iproto \
  --go_out=proto --go_opt=paths=source_relative \
  --go-grpc_out=proto --go-grpc_opt=paths=source_relative \
  --python_out=python --grpc_python_out=python $files
