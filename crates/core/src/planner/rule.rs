//! The names of the safety rules. The rules themselves are in `safety` and in `kinds/NAME/safety`.

use std::fmt;

use serde::Serialize;

/// The rules by name, as refusals cite them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    OneMembershipChange,
    LearnerFirst,
    QuorumIsKept,
    NewWithinOneFormation,
    FormationsShareNothing,
    DataDiesOnlyByConsent,
    UnseenIsUnsafe,
    OneDisturbance,
    KnownVersions,
    MachineIsReady,
    OneController,
    OneKeyPerToken,
    TrustComesFirst,
    SomeThingsStay,
    CommitsSurvive,
    StandbyIsReady,
    StandbyKeepsUp,
    UpgradeIsRehearsed,
    StopsByConsent,
    ProxyServes,
    OthersAreLeftAlone,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rule::OneMembershipChange => "one membership change at a time",
            Rule::LearnerFirst => "every new voter is a learner first",
            Rule::QuorumIsKept => "quorum is never lost",
            Rule::NewWithinOneFormation => "only one bootstrap token may start a new cluster",
            Rule::FormationsShareNothing => "clusters never share an identity",
            Rule::DataDiesOnlyByConsent => "data is deleted only with consent",
            Rule::UnseenIsUnsafe => "an unknown state counts as unsafe",
            Rule::OneDisturbance => "one disturbance at a time",
            Rule::KnownVersions => "only known releases and upgrade paths",
            Rule::MachineIsReady => "a machine gets no configuration that it is not ready for",
            Rule::OneController => "one controller at a time",
            Rule::OneKeyPerToken => "an enrolment token is valid for one key",
            Rule::TrustComesFirst => "every member trusts a new CA before it is used",
            Rule::SomeThingsStay => "cannot be changed after creation",
            Rule::CommitsSurvive => "confirmed commits survive",
            Rule::StandbyKeepsUp => "no standby has lower limits than its primary",
            Rule::UpgradeIsRehearsed => "an upgrade is rehearsed before any member is stopped",
            Rule::StopsByConsent => "clients are stopped only with consent",
            Rule::ProxyServes => "a proxy keeps serving while another is changed",
            Rule::OthersAreLeftAlone => "only what has the cluster's mark is changed",
            Rule::StandbyIsReady => "only a standby with all confirmed commits takes over",
        })
    }
}
