//! Names of data that outlives its machine: `MEMBER.INCARNATION.FENCE`.

/// For which incarnation, and under which fencing number, data was made for this member. Earlier versions named it after the member alone.
pub(crate) fn made_for(name: &str, member: &str) -> Option<(u64, u64)> {
    let of = name.strip_prefix(member)?;
    if of.is_empty() {
        return Some((0, 0));
    }
    let (incarnation, fence) = of.strip_prefix('.')?.split_once('.')?;
    Some((incarnation.parse().ok()?, fence.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::made_for;

    #[test]
    fn a_name_shows_which_machine_the_data_was_created_for() {
        assert_eq!(made_for("etcd-1.3.17", "etcd-1"), Some((3, 17)));
        assert_eq!(made_for("etcd-1", "etcd-1"), Some((0, 0)), "as earlier versions named it");
        assert_eq!(made_for("etcd-11.3.17", "etcd-1"), None);
        assert_eq!(made_for("etcd-1-b.3.17", "etcd-1"), None);
    }
}
