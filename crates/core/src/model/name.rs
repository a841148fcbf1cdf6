//! The name of a member, which it keeps for life. A former machine of the member, which may still belong to the cluster while
//! its successor joins, is named by member and incarnation: `etcd-2.1`.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};

/// No name in a spec can hold it.
const FORMER: char = '.';
/// What ledgers of the first format have in its place.
const FORMER_BEFORE: char = '#';

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(transparent)]
pub struct MemberName(String);

impl MemberName {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of a machine of an earlier incarnation.
    pub fn former(&self, incarnation: u64) -> MemberName {
        MemberName(format!("{}{FORMER}{incarnation}", self.seat()))
    }

    pub fn is_former(&self) -> bool {
        self.0.contains(FORMER)
    }

    /// The name of the member, without the number of its machine.
    pub fn seat(&self) -> &str {
        self.0.split(FORMER).next().unwrap_or(&self.0)
    }
}

impl<T: Into<String>> From<T> for MemberName {
    fn from(name: T) -> Self {
        MemberName(name.into())
    }
}

impl<'de> Deserialize<'de> for MemberName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Ok(MemberName(name.replace(FORMER_BEFORE, &FORMER.to_string())))
    }
}

impl fmt::Display for MemberName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// One machine of a cluster: its member, and which machine of that member it is. Shown as `etcd-2.2`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MachineId {
    pub member: MemberName,
    pub incarnation: u64,
}

impl MachineId {
    /// A machine of the member with this name, or of the member that this former machine belonged to.
    pub fn new(member: &MemberName, incarnation: u64) -> Self {
        MachineId { member: member.seat().into(), incarnation }
    }
}

impl fmt::Display for MachineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{FORMER}{}", self.member, self.incarnation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_former_machine_is_called_by_member_and_incarnation() {
        let former = MemberName::from("etcd-2").former(1);
        assert_eq!((former.to_string().as_str(), former.seat(), former.is_former()), ("etcd-2.1", "etcd-2", true));
        assert_eq!(former.former(3).as_str(), "etcd-2.3");
        assert_eq!(MachineId::new(&former, 2).to_string(), "etcd-2.2");
    }

    #[test]
    fn a_name_of_the_first_ledgers_is_read() {
        let read = |text: &str| serde_json::from_str::<MemberName>(text).unwrap();
        assert_eq!(read("\"etcd-2#1\""), MemberName::from("etcd-2").former(1));
        assert_eq!(read("\"etcd-2\""), MemberName::from("etcd-2"));
    }
}
