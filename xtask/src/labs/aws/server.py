"""moto's server, in which an instance that is terminated releases its network interfaces, as in AWS. It has no address then."""

import sys

from moto.ec2.models.instances import Instance
from moto.server import main

terminate = Instance.terminate


def terminate_and_release(self):
    interfaces = list(self.nics.values())
    state = terminate(self)
    for interface in interfaces:
        if not interface.delete_on_termination and interface.instance is self:
            self.detach_eni(interface)
    return state


def unless_released(of):
    return property(lambda self: of.fget(self) if self.nics else None)


Instance.terminate = terminate_and_release
for name in ["private_ip", "private_ip_address", "private_dns_name", "public_ip", "public_dns_name", "public_ip_address"]:
    if isinstance(getattr(Instance, name, None), property):
        setattr(Instance, name, unless_released(getattr(Instance, name)))
sys.exit(main(sys.argv[1:]))
