//! Leases: keys that are deleted unless a client keeps them alive.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::connect::Client;
use crate::error::{Error, Thing};
use crate::generated::etcdserverpb::lease_client::LeaseClient;
use crate::generated::etcdserverpb::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseLeasesRequest, LeaseRevokeRequest,
    LeaseTimeToLiveRequest,
};
use crate::session::{Token, with_token};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    pub id: i64,
    /// The granted time, which may be longer than requested.
    pub ttl: Duration,
}

/// etcd's information about a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseState {
    pub granted: Duration,
    pub remaining: Duration,
    /// How many keys it would delete.
    pub keys: usize,
}

/// Renews one lease over one stream. Dropping it lets the lease run out; it does not revoke it.
#[derive(Debug)]
pub struct LeaseKeeper {
    client: Client,
    id: i64,
    requests: mpsc::Sender<LeaseKeepAliveRequest>,
    answers: Streaming<LeaseKeepAliveResponse>,
}

impl Client {
    /// etcd counts in whole seconds: a fraction is rounded up.
    pub async fn lease_grant(&self, ttl: Duration) -> Result<Lease, Error> {
        self.lease_grant_as(0, ttl).await
    }

    /// A lease with this ID, if no other has it.
    pub async fn lease_grant_as(&self, id: i64, ttl: Duration) -> Result<Lease, Error> {
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        let request = LeaseGrantRequest { ttl: i64::try_from(seconds).unwrap_or(i64::MAX), id };
        let answer = self
            .call(request, |channel, request| async move { LeaseClient::new(channel).lease_grant(request).await })
            .await?;
        Ok(Lease { id: answer.id, ttl: seconds_of(answer.ttl) })
    }

    /// Deletes the keys of the lease, too.
    pub async fn lease_revoke(&self, id: i64) -> Result<(), Error> {
        let request = LeaseRevokeRequest { id };
        self.call(request, |channel, request| async move { LeaseClient::new(channel).lease_revoke(request).await })
            .await?;
        Ok(())
    }

    /// The numbers of all leases of the cluster.
    pub async fn leases(&self) -> Result<Vec<i64>, Error> {
        let request = LeaseLeasesRequest {};
        let answer = self
            .call(request, |channel, request| async move { LeaseClient::new(channel).lease_leases(request).await })
            .await?;
        Ok(answer.leases.into_iter().map(|lease| lease.id).collect())
    }

    /// `None` for an expired lease.
    pub async fn lease_state(&self, id: i64) -> Result<Option<LeaseState>, Error> {
        let request = LeaseTimeToLiveRequest { id, keys: true };
        let answer =
            self.call(request, |channel, request| async move {
                LeaseClient::new(channel).lease_time_to_live(request).await
            })
            .await?;
        Ok((answer.ttl >= 0).then(|| LeaseState {
            granted: seconds_of(answer.granted_ttl),
            remaining: seconds_of(answer.ttl),
            keys: answer.keys.len(),
        }))
    }

    /// Renews the lease once, and hands out what renews it again.
    pub async fn lease_keep_alive(&self, id: i64) -> Result<LeaseKeeper, Error> {
        let open = |token| self.open_keeper(id, token);
        self.in_time(self.logged_in(open, |error| matches!(error, Error::Unauthenticated(_)))).await
    }

    async fn open_keeper(&self, id: i64, token: Token) -> Result<LeaseKeeper, Error> {
        let (requests, queue) = mpsc::channel(1);
        // etcd opens its side of the stream with its first answer, so the first request must be on its way by then.
        let _ = requests.try_send(LeaseKeepAliveRequest { id });
        let request = with_token(ReceiverStream::new(queue), token);
        let answer = LeaseClient::new(self.inner.channel.clone()).lease_keep_alive(request).await;
        let answers = answer.map_err(|status| self.error(status))?.into_inner();
        let mut keeper = LeaseKeeper { client: self.clone(), id, requests, answers };
        keeper.receive().await?;
        Ok(keeper)
    }
}

impl LeaseKeeper {
    /// Renews the lease and returns for how long. A lease that is gone is `NotFound`; after any error the keeper is of no more use.
    pub async fn renew(&mut self) -> Result<Duration, Error> {
        let client = self.client.clone();
        client
            .in_time(async {
                // A closed queue means that the stream has ended; why is for `receive` to say.
                let _ = self.requests.send(LeaseKeepAliveRequest { id: self.id }).await;
                self.receive().await
            })
            .await
    }

    async fn receive(&mut self) -> Result<Duration, Error> {
        let answer = self.answers.message().await.map_err(|status| self.client.error(status))?;
        match answer {
            None => Err(Error::Unavailable { message: "the stream of renewals was closed".to_owned() }),
            Some(answer) if answer.ttl <= 0 => Err(Error::NotFound(Thing::Lease)),
            Some(answer) => Ok(seconds_of(answer.ttl)),
        }
    }
}

fn seconds_of(ttl: i64) -> Duration {
    Duration::from_secs(u64::try_from(ttl).unwrap_or(0))
}
