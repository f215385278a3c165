# shellcheck shell=sh
# Containers that are given the GPUs by the agent's spec alone. Sourced after lib.sh. The functions
# are called by their names in CONSUMERS.
# shellcheck disable=SC2086

SPEC_DIR=/var/run/cdi
SPEC=$SPEC_DIR/longshore-nvidia.com-gpu.json

# Writes the spec that the agent shows.
publish() {
    mkdir -p "$SPEC_DIR"
    pod exec longshore longshore cdi show >"$SPEC_DIR/spec.tmp"
    mv "$SPEC_DIR/spec.tmp" "$SPEC"
}

unpublish() {
    rm "$SPEC"
    rmdir "$SPEC_DIR"
}

# In the container: prints its nodes, the loader's complaint about a library that it cannot load, and
# the answer of nvidia-smi.
# shellcheck disable=SC2016
LOOK='
    for node in /dev/nvidia*; do [ -c "$node" ] && echo "node $node"; done
    for library in libcuda.so.1 libnvidia-ml.so.1; do
        LD_PRELOAD=$library busybox true && echo "tried $library"
    done
    /usr/bin/nvidia-smi
    echo "rc $?"'

# consume: reports the container of each consumer.
consume() {
    publish
    for consumer in $CONSUMERS; do
        section "ready.cdi-$consumer" "consume_$(echo "$consumer" | tr - _)"
    done
    unpublish
}

consume_podman() {
    pod_podman run --rm --network none --device nvidia.com/gpu=all --entrypoint /bin/sh $IMAGE \
        -c "$LOOK"
}

consume_podman_by_index() {
    pod_podman run --rm --network none --device nvidia.com/gpu=0 --entrypoint /bin/sh $IMAGE \
        -c "$LOOK"
}

consume_docker() {
    docker run --rm --network none --device nvidia.com/gpu=all --entrypoint /bin/sh $IMAGE \
        -c "$LOOK"
}

# Prints the spec's nodes and mounts of all GPUs as options of docker, one a line.
docker_options() {
    jq -r '(.containerEdits, (.devices[] | select(.name == "all").containerEdits))
        | (.deviceNodes[]? | "--device=\(.hostPath // .path):\(.path)"),
          (.mounts[]? | "--volume=\(.hostPath):\(.containerPath):ro")' "$SPEC" | sort -u
}

consume_docker_options() {
    # shellcheck disable=SC2046
    docker run --rm --network none $(docker_options) --entrypoint /bin/sh $IMAGE -c "$LOOK"
}

consume_ctr() {
    ctr run --rm --device nvidia.com/gpu=0 $IMAGE consumer /bin/sh -c "$LOOK"
}
