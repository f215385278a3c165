"""Offers kubelet one device, nvidia.com/gpu, whose containers get an annotation of CDI.

    device_plugin.py DEVICE

The answer of a device plugin is the only way by which kubelet 1.20 gives a container such an annotation:
annotations of the pod do not reach its containers. The messages are those of version v1beta1 of kubelet's
interface for device plugins. It runs until it is killed.
"""

import sys
import threading
from concurrent import futures

import grpc

from wire import message

DIRECTORY = "/var/lib/kubelet/device-plugins"
SOCKET = "matrix.sock"
RESOURCE = "nvidia.com/gpu"


def empty(_request, _context):
    return b""


def list_and_watch(_request, context):
    """Names the device once; it is healthy for as long as this program runs."""
    yield message((1, message((1, "0"), (2, "Healthy"))))
    ended = threading.Event()
    context.add_callback(ended.set)
    ended.wait()


def allocation(device):
    """Encodes the answer for a container: its annotation of CDI."""
    annotation = message((1, "cdi.k8s.io/matrix"), (2, device))
    return message((1, message((4, annotation))))


def main(device):
    allocated = allocation(device)
    methods = {
        "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(empty),
        "ListAndWatch": grpc.unary_stream_rpc_method_handler(list_and_watch),
        "Allocate": grpc.unary_unary_rpc_method_handler(lambda _request, _context: allocated),
    }
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    handler = grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", methods)
    server.add_generic_rpc_handlers((handler,))
    server.add_insecure_port(f"unix://{DIRECTORY}/{SOCKET}")
    server.start()
    kubelet = grpc.insecure_channel(f"unix://{DIRECTORY}/kubelet.sock")
    register = kubelet.unary_unary("/v1beta1.Registration/Register")
    register(message((1, "v1beta1"), (2, SOCKET), (3, RESOURCE)), timeout=120)
    server.wait_for_termination()


main(*sys.argv[1:])
