#!/bin/sh
# Tries the service on this machine's CPU with Prometheus beside it: serves the default target, asks
# it for a while, draws the dashboards, stops.
#
#   sh deploy/try-local.sh [FOLDER [SECONDS [FLAGS of blockdraft serve]]]
#
# FOLDER (./try-local) gets the images and the logs; SECONDS (90) is how long it is asked. Needs
# blockdraft[serve,bench], and prometheus (Debian's package, or any other) in PATH. Ports are the five
# from TRY_LOCAL_PORT (9110) on: metrics of server, verifier and drafter, the service, Prometheus.
set -eu
deploy=$(cd "$(dirname "$0")" && pwd)
folder=${1:-try-local}
seconds=${2:-90}
[ $# -lt 2 ] && set -- "$folder" "$seconds"
shift 2
port=${TRY_LOCAL_PORT:-9110}
address=127.0.0.1:$((port + 3))
prometheus=127.0.0.1:$((port + 4))
scratch=$(mktemp -d)
mkdir -p "$folder"

# What was started is stopped, however this ends.
children=""
stop() {
  for child in $children; do kill -TERM "$child" 2>/dev/null || true; done
  for child in $children; do wait "$child" 2>/dev/null || true; done
  children=""
}
trap 'stop; rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM

blockdraft serve --listen "$address" --metrics-port "$port" "$@" 2>"$folder/serve.log" &
children="$!"
cat >"$scratch/prometheus.yaml" <<END
global: {scrape_interval: 2s, evaluation_interval: 2s}
rule_files: ["$deploy/prometheus/rules.yaml"]
scrape_configs:
  - job_name: blockdraft
    static_configs:
      - targets: ["127.0.0.1:$port", "127.0.0.1:$((port + 1))", "127.0.0.1:$((port + 2))"]
END
prometheus --config.file="$scratch/prometheus.yaml" --storage.tsdb.path="$scratch/data" \
  --web.listen-address="$prometheus" 2>"$folder/prometheus.log" &
children="$children $!"

echo "waiting until it is ready: $folder/serve.log"
until blockdraft health --address "$address" >/dev/null 2>&1; do
  # The service may have given up: its log says why.
  kill -0 "${children%% *}" || exit 1
  sleep 1
done

echo "asking for $seconds s"
ask() {
  end=$(($(date +%s) + seconds))
  while [ "$(date +%s)" -lt "$end" ]; do
    blockdraft generate --chat "$1" --address "$address" --max-tokens 64 >/dev/null
  done
}
ask "Explain how a lighthouse works." &
first=$!
ask "Repeat word for word: the cat sat on the mat and the dog sat on the cat." &
wait "$first" "$!"

python "$deploy/grafana/draw.py" "http://$prometheus" "$folder" \
  --minutes "$(awk "BEGIN { print ($seconds + 10) / 60 }")"
begun=$(date +%s)
stop
echo "stopped within $(($(date +%s) - begun)) s"
