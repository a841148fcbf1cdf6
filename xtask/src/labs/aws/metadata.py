"""The metadata service of instances, version 2 alone: a token by PUT, everything else with it. It hands out exactly the user data that EC2 was
given. Its answers have the hop limit that the instance was made with, so they do not reach containers on it.
"""

import base64
import json
import secrets
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ADDRESS = "169.254.169.254"
LONGEST = 21600


def described(instance):
    zone = instance["Placement"]["AvailabilityZone"]
    address, interface = instance["PrivateIpAddress"], instance["NetworkInterfaces"][0]
    host = instance["PrivateDnsName"]
    return {
        "ami-id": instance["ImageId"],
        "ami-launch-index": "0",
        "hostname": host,
        "instance-id": instance["InstanceId"],
        "instance-type": instance["InstanceType"],
        "local-hostname": host,
        "local-ipv4": address,
        "mac": interface["MacAddress"],
        "placement/availability-zone": zone,
        "placement/region": zone[:-1],
        f"network/interfaces/macs/{interface['MacAddress']}/device-number": "0",
        f"network/interfaces/macs/{interface['MacAddress']}/local-ipv4s": address,
        "reservation-id": "r-0123456789abcdef0",
        "security-groups": "\n".join(group["GroupName"] for group in instance["SecurityGroups"]),
    }


def identity(instance):
    known = described(instance)
    names = {"instanceId": "instance-id", "imageId": "ami-id", "instanceType": "instance-type", "privateIp": "local-ipv4"}
    names |= {"region": "placement/region", "availabilityZone": "placement/availability-zone"}
    return json.dumps({name: known[path] for name, path in names.items()})


def look_up(table, path):
    """The value, or what is below."""
    if path in table:
        return table[path]
    prefix = path.rstrip("/") + "/" if path.strip("/") else ""
    heads = {}
    for name in table:
        if name.startswith(prefix):
            head, slash, _ = name[len(prefix):].partition("/")
            heads[head + slash] = None
    return "\n".join(heads) or None


def handler(ec2, running, tokens, lock):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def instance(self):
            return next((one for one in list(running.values()) if one["PrivateIpAddress"] == self.client_address[0]), None)

        def answer(self, status, text="", lasts=None):
            data = text if isinstance(text, bytes) else text.encode()
            self.send_response(status)
            if lasts:
                self.send_header("X-aws-ec2-metadata-token-ttl-seconds", lasts)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def setup(self):
            super().setup()
            instance = self.instance() or {}
            hops = instance.get("MetadataOptions", {}).get("HttpPutResponseHopLimit", 1)
            self.connection.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, hops)

        def do_PUT(self):
            wanted = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
            instance = self.instance()
            if self.path != "/latest/api/token" or instance is None:
                return self.answer(404)
            if "X-Forwarded-For" in self.headers:
                return self.answer(403)
            if not wanted.isdigit() or not 1 <= int(wanted) <= LONGEST:
                return self.answer(400)
            token = secrets.token_urlsafe(40)
            with lock:
                tokens[token] = (instance["InstanceId"], time.monotonic() + int(wanted))
            self.answer(200, token, lasts=wanted)

        def do_GET(self):
            instance = self.instance()
            with lock:
                whose, ends = tokens.get(self.headers.get("X-aws-ec2-metadata-token"), (None, 0))
            if instance is None or whose != instance["InstanceId"] or ends < time.monotonic():
                return self.answer(401)
            _, _, path = self.path.lstrip("/").partition("/")
            if path == "user-data":
                with lock:
                    asked = ec2.describe_instance_attribute(InstanceId=whose, Attribute="userData")
                data = asked["UserData"].get("Value")
                return self.answer(200, base64.b64decode(data)) if data else self.answer(404)
            table = {f"meta-data/{name}": value for name, value in described(instance).items()}
            found = look_up(table | {"dynamic/instance-identity/document": identity(instance)}, path)
            self.answer(404) if found is None else self.answer(200, found)

    return Handler


def serve(ec2, running):
    """`running`: the instances that are, by id."""
    server = ThreadingHTTPServer((ADDRESS, 80), handler(ec2, running, {}, threading.Lock()))
    threading.Thread(target=server.serve_forever, daemon=True).start()
