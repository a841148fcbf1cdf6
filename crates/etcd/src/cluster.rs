//! The membership: the member list, and changes to it. Callers decide whether a change is safe; etcd's own checks apply as well.

use tonic::Code;

use crate::connect::Client;
use crate::error::Error;
use crate::generated::etcdserverpb::cluster_client::ClusterClient;
use crate::generated::etcdserverpb::{
    self as pb, MemberAddRequest, MemberListRequest, MemberPromoteRequest, MemberRemoveRequest, MemberUpdateRequest,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub id: u64,
    /// Empty until the member has started.
    pub name: String,
    pub peer_urls: Vec<String>,
    /// Empty until the member has started.
    pub client_urls: Vec<String>,
    pub is_learner: bool,
}

impl Client {
    /// `linearizable` asks the quorum; otherwise this member answers what it knows, as 3.4 always does.
    pub async fn members(&self, linearizable: bool) -> Result<Vec<Member>, Error> {
        let request = MemberListRequest { linearizable };
        let answer = self
            .call(request, |channel, request| async move { ClusterClient::new(channel).member_list(request).await })
            .await?;
        Ok(answer.members.into_iter().map(Member::from).collect())
    }

    pub async fn member_add(&self, peer_urls: Vec<String>, learner: bool) -> Result<Member, Error> {
        let request = MemberAddRequest { peer_ur_ls: peer_urls, is_learner: learner };
        let answer = self
            .call(request, |channel, request| async move { ClusterClient::new(channel).member_add(request).await })
            .await?;
        let unnamed = || Error::Other { code: Code::Internal, message: "the answer names no member".to_owned() };
        answer.member.map(Member::from).ok_or_else(unnamed)
    }

    pub async fn member_remove(&self, id: u64) -> Result<(), Error> {
        let request = MemberRemoveRequest { id };
        self.call(request, |channel, request| async move { ClusterClient::new(channel).member_remove(request).await })
            .await?;
        Ok(())
    }

    /// Makes a voter of a learner.
    pub async fn member_promote(&self, id: u64) -> Result<(), Error> {
        let request = MemberPromoteRequest { id };
        self.call(request, |channel, request| async move { ClusterClient::new(channel).member_promote(request).await })
            .await?;
        Ok(())
    }

    /// Never call this for a learner on etcd below 3.5.31 or 3.6.12: it makes a voter of it.
    pub async fn member_update(&self, id: u64, peer_urls: Vec<String>) -> Result<(), Error> {
        let request = MemberUpdateRequest { id, peer_ur_ls: peer_urls };
        self.call(request, |channel, request| async move { ClusterClient::new(channel).member_update(request).await })
            .await?;
        Ok(())
    }
}

impl From<pb::Member> for Member {
    fn from(member: pb::Member) -> Self {
        let pb::Member { id, name, peer_ur_ls, client_ur_ls, is_learner } = member;
        Self { id, name, peer_urls: peer_ur_ls, client_urls: client_ur_ls, is_learner }
    }
}
