"""moto's server, in which an instance that is terminated releases its network interfaces, as in AWS."""

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


Instance.terminate = terminate_and_release
sys.exit(main(sys.argv[1:]))
