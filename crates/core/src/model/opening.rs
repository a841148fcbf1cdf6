//! Open ports of machines. The machine's firewall and the cloud's security groups are rendered from this list.

use crate::spec::AddressRange;

/// Ports, and who may connect to them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Opening {
    pub to: Audience,
    pub ports: Vec<u16>,
    /// None: from anywhere.
    pub from: Option<Vec<AddressRange>>,
}

/// The users of a port.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Audience {
    /// Other machines of the cluster.
    Peers,
    Clients,
    /// ssh, and the controller.
    Operators,
    /// What collects metrics.
    Monitoring,
}
