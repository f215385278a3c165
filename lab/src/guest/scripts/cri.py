"""Runs a shell's command in a container by the Container Runtime Interface, as kubelet does, and prints
its output.

    cri.py IMAGE COMMAND [field|annotation DEVICE]

A pod sandbox with the host's network, which requires no CNI plugin; in it a container, with a device of
CDI by the request's field or by an annotation. Both are removed. The messages are written and read by
their field numbers in version 1 of the interface (wire.py).
"""

import os
import sys
import time

import grpc

from wire import fields, message

SOCKET = "unix:///run/containerd/containerd.sock"
LOGS = "/run/matrix/cri"
LOG = "container.log"
NODE_NAMESPACE = 2
EXITED = 2


def call(channel, method, *request):
    """Calls a method of the runtime service."""
    done = channel.unary_unary(f"/runtime.v1.RuntimeService/{method}")(message(*request), timeout=120)
    return fields(done)


def pod():
    """Encodes the sandbox's configuration."""
    names = message((1, "matrix"), (2, "matrix-uid"), (3, "default"))
    namespaces = message((1, NODE_NAMESPACE))
    return message((1, names), (3, LOGS), (8, message((2, message((1, namespaces))))))


def container(image, command, form, device):
    """Encodes the container's configuration, with the device in the form asked for."""
    config = [(1, message((1, "matrix"))), (2, message((1, image)))]
    config += [(3, word) for word in ("/bin/sh", "-c", command)]
    config.append((11, LOG))
    if form == "annotation":
        config.append((10, message((1, "cdi.k8s.io/matrix"), (2, device))))
    if form == "field":
        config.append((17, message((1, device))))
    return message(*config)


def run(channel, sandbox, config):
    """Runs a container in the sandbox to its end, and removes it."""
    created = call(channel, "CreateContainer", (1, sandbox), (2, config), (3, pod()))[1]
    call(channel, "StartContainer", (1, created))
    while fields(call(channel, "ContainerStatus", (1, created))[1]).get(3) != EXITED:
        time.sleep(0.2)
    call(channel, "RemoveContainer", (1, created))


def main(image, command, form="", device=""):
    os.makedirs(LOGS, exist_ok=True)
    channel = grpc.insecure_channel(SOCKET)
    sandbox = call(channel, "RunPodSandbox", (1, pod()))[1]
    try:
        run(channel, sandbox, container(image, command, form, device))
    finally:
        call(channel, "StopPodSandbox", (1, sandbox))
        call(channel, "RemovePodSandbox", (1, sandbox))
    # Each line of the log has a time, the stream and a mark before the text.
    with open(f"{LOGS}/{LOG}", encoding="utf-8") as log:
        for line in log:
            print(line.rstrip("\n").split(" ", 3)[3])
    os.remove(f"{LOGS}/{LOG}")


main(*sys.argv[1:])
