//! A store that ends the process at a planned put or deletion.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use futures::{FutureExt as _, StreamExt as _};
use object_store::{Error, ObjectStore, PutOptions, PutPayload, PutResult, Result, path::Path};

use super::{Blow, KillSwitch, Moment, Phase};
use crate::forward::{Answer, forward_to, own_deletions};

/// See the module.
#[derive(Debug, Clone)]
pub struct KillingStore {
    inner: Arc<dyn ObjectStore>,
    switch: KillSwitch,
}

impl KillingStore {
    /// Wraps a store.
    #[must_use]
    pub fn over(inner: Arc<dyn ObjectStore>, switch: KillSwitch) -> Self {
        Self { inner, switch }
    }

    async fn delete_one(&self, location: Path) -> Result<Path> {
        let blow = self.switch.meet(Some(Phase::RetentionAndDeletion), "delete", location.as_ref());
        let one = futures::stream::once(std::future::ready(Ok(location.clone()))).boxed();
        let mut deleted = self.inner.delete_stream(one);
        let work = async {
            while let Some(result) = deleted.next().await {
                result?;
            }
            Ok(location)
        };
        around(blow, work).await
    }
}

impl fmt::Display for KillingStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KillingStore({})", self.inner)
    }
}

fn ended(blow: &Blow) -> Error {
    Error::Generic { store: "KillingStore", source: blow.strike().into() }
}

/// Does an operation around a blow, if it meets one.
async fn around<T>(blow: Option<Blow>, work: impl Future<Output = Result<T>>) -> Result<T> {
    let Some(blow) = blow else { return work.await };
    match blow.plan.moment {
        Moment::Before => Err(ended(&blow)),
        Moment::During => {
            let mut work = std::pin::pin!(work);
            // Begun, and a few milliseconds into it: a put takes about as long.
            if (&mut work).now_or_never().is_none() {
                let into = Duration::from_millis(u64::from(blow.plan.nth % 4));
                let _done_or_not = tokio::time::timeout(into, work).await;
            }
            Err(ended(&blow))
        }
        Moment::After => {
            work.await?;
            Err(ended(&blow))
        }
    }
}

impl ObjectStore for KillingStore {
    own_deletions!();
    forward_to!(inner, and reads and lists);

    fn put_opts<'this, 'path, 'call>(
        &'this self,
        location: &'path Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Answer<'call, PutResult>
    where
        'this: 'call,
        'path: 'call,
        Self: 'call,
    {
        let blow = self.switch.meet(Some(Phase::Upload), "put", location.as_ref());
        Box::pin(around(blow, self.inner.put_opts(location, payload, options)))
    }
}

#[cfg(test)]
mod tests {
    use object_store::{ObjectStoreExt as _, memory::InMemory};

    use super::*;
    use crate::kill::KillPlan;

    #[tokio::test]
    async fn the_process_ends_before_or_after_the_planned_put_and_deletion() {
        for (plan, put_is_there, deleted_is_there) in [
            ("upload:1:before", false, false),
            ("upload:1:after", true, false),
            ("retention-and-deletion:1:before", true, true),
            ("retention-and-deletion:1:after", true, false),
        ] {
            let inner = Arc::new(InMemory::new());
            let (old, new) = (Path::from("old"), Path::from("new"));
            inner.put(&old, "x".into()).await.unwrap();
            let switch = KillSwitch::ending(Some(plan.parse::<KillPlan>().unwrap()), None, || ());
            switch.serving();
            let store = KillingStore::over(Arc::clone(&inner) as _, switch);
            let outcomes = (store.put(&new, "y".into()).await.is_ok(), store.delete(&old).await.is_ok());
            assert_eq!(outcomes, (!plan.starts_with("upload"), plan.starts_with("upload")), "{plan}");
            assert_eq!(inner.head(&new).await.is_ok(), put_is_there, "{plan}");
            assert_eq!(inner.head(&old).await.is_ok(), deleted_is_there, "{plan}");
        }
    }
}
