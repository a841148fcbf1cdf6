"""moto's server, in which an instance that is terminated releases its network interfaces, as in AWS. It has no address then. A NAT gateway
that is deleted releases its interface and its address, and a subnet its route table. A record that was deleted can be created as it was.
"""

import sys

from moto.ec2.models.instances import Instance
from moto.ec2.models.nat_gateways import NatGatewayBackend
from moto.ec2.models.subnets import SubnetBackend
from moto.route53.models import Route53Backend
from moto.server import main

terminate = Instance.terminate


def terminate_and_release(self):
    interfaces = list(self.nics.values())
    state = terminate(self)
    for interface in interfaces:
        if not interface.delete_on_termination and interface.instance is self:
            self.detach_eni(interface)
    return state


delete_nat_gateway = NatGatewayBackend.delete_nat_gateway


def delete_and_release(self, nat_gateway_id):
    gateway = delete_nat_gateway(self, nat_gateway_id)
    for address in self.addresses:
        if address.eni is gateway._eni:
            self.disassociate_address(address=address.public_ip)
    self.enis.pop(gateway._eni.id, None)
    return gateway


delete_subnet = SubnetBackend.delete_subnet


def delete_and_disassociate(self, subnet_id):
    for table in self.route_tables.values():
        table._associations = {name: subnet for name, subnet in table._associations.items() if subnet != subnet_id}
    return delete_subnet(self, subnet_id)


change_records = Route53Backend.change_resource_record_sets


def change_and_forget(self, zoneid, change_list):
    journal = self.get_hosted_zone(zoneid).rr_changes
    for change in change_list:
        while change["Action"] == "CREATE" and change in journal:
            journal.remove(change)
    return change_records(self, zoneid, change_list)


def unless_released(of):
    return property(lambda self: of.fget(self) if self.nics else None)


Instance.terminate = terminate_and_release
NatGatewayBackend.delete_nat_gateway = delete_and_release
SubnetBackend.delete_subnet = delete_and_disassociate
Route53Backend.change_resource_record_sets = change_and_forget
for name in ["private_ip", "private_ip_address", "private_dns_name", "public_ip", "public_dns_name", "public_ip_address"]:
    if isinstance(getattr(Instance, name, None), property):
        setattr(Instance, name, unless_released(getattr(Instance, name)))
sys.exit(main(sys.argv[1:]))
