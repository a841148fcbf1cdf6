"""Flavors, zones and networks, as an operator sets them up once."""

import openstack

# Name, memory in MiB, cores, disk in GiB: for hosts whose guests are records, and for emulated ones.
FLAVORS = [("record", 64, 1, 1), ("record-2", 128, 2, 1), ("machine", 512, 1, 4), ("machine-2", 640, 1, 4)]
ZONES = {"fake": ["fake1", "fake2", "fake3"], "real": ["real1"]}

cloud = openstack.connect(cloud="admin")
compute, network = cloud.compute, cloud.network


def subnet(of, name, cidr, **more):
    version = 6 if ":" in cidr else 4
    return network.create_subnet(network_id=of.id, name=name, cidr=cidr, ip_version=version, is_dhcp_enabled=False, **more)


for name, ram, vcpus, disk in FLAVORS:
    compute.create_flavor(name=name, ram=ram, vcpus=vcpus, disk=disk)
for zone, hosts in ZONES.items():
    aggregate = compute.create_aggregate(name=zone, availability_zone=zone)
    for host in hosts:
        compute.add_host_to_aggregate(aggregate, host)

# quorate's user owns networks: neutron lets nobody else choose addresses on them. The first has the lab itself as its gateway; addresses
# outside of the pool are for those who ask for one by its number.
project = {"project_id": cloud.identity.find_project("quorate").id}
lab = network.create_network(name="lab", provider_network_type="flat", provider_physical_network="lab", **project)
pool = [{"start": "10.80.128.1", "end": "10.80.254.254"}]
lab_subnet = subnet(lab, "lab", "10.80.0.0/16", gateway_ip="10.80.0.1", allocation_pools=pool, **project)
second = network.create_network(name="second", provider_network_type="local", **project)
subnet(second, "second", "10.81.0.0/16", gateway_ip=None, **project)
subnet(second, "second-6", "fd42:81::/64", gateway_ip=None, **project)
# Allows traffic from machines on the same network.
group = network.create_security_group(name="machines", **project)
network.create_security_group_rule(
    security_group_id=group.id, direction="ingress", ether_type="IPv4", remote_ip_prefix="10.80.0.0/16", **project
)

# For floating addresses, which are records: no agent routes.
public = network.create_network(
    name="public", is_router_external=True, provider_network_type="flat", provider_physical_network="public"
)
subnet(public, "public", "192.0.2.0/24")
router = network.create_router(name="lab", external_gateway_info={"network_id": public.id})
port = network.create_port(network_id=lab.id, fixed_ips=[{"subnet_id": lab_subnet.id, "ip_address": "10.80.0.2"}])
network.add_interface_to_router(router, port_id=port.id)
