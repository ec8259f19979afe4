//! The deliberate mistakes that the model must find.

use std::{fmt, str::FromStr};

use tidelog_sim::{Fault, FaultEffect, OperationKind, SimDisk};
use tidelog_testkit::Carelessness;

macro_rules! mistakes {
    ($($variant:ident $name:literal $what:literal),* $(,)?) => {
        /// A deliberate mistake.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Mistake {
            $(#[doc = $what] $variant,)*
        }

        impl Mistake {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Its name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// What it is, in a sentence.
            #[must_use]
            pub const fn what(self) -> &'static str {
                match self { $(Self::$variant => $what,)* }
            }
        }
    };
}

mistakes! {
    AckBeforeSync "ack-before-sync" "records count as synced when their write returned",
    AckBeforeWrite "ack-before-write" "rounds of the journal are acknowledged while they wait to be written",
    JournalSyncLies "journal-sync-lies" "a sync of the journal does nothing",
    DirectorySyncLies "directory-sync-lies" "a sync of a directory does nothing",
    FreeJournalEarly "free-journal-early" "a checkpoint frees journal files that it does not cover",
    CheckpointWithoutSync "checkpoint-without-sync" "a checkpoint covers segments that are not synced",
    HotCrcIgnored "hot-crc-ignored" "checksums of local segments are not compared",
    CommitNotDurable "commit-not-durable" "the controller's log is not synced: local bytes go while their manifest entry can be lost",
    CommitBeforeWrite "commit-before-write" "rounds of the controller's log are acknowledged while they wait to be written",
    EvictBeforeCommit "evict-before-commit" "local segments go once they are sealed",
    LogStartNotCommitted "log-start-not-committed" "local bytes below a log start go before the controller has it",
    CommitTwice "commit-twice" "an entry is applied to the manifest twice",
    RangeTooLong "range-too-long" "the last offset of a sealed range is taken for one more",
    RangeTooShort "range-too-short" "the last offset of a sealed range is taken for one less",
    PutAnsweredEarly "put-answered-early" "an object enters the manifest before all of it is stored",
    LoseObject "lose-object" "an object that was acknowledged is gone",
    RotObject "rot-object" "a byte of a stored object is another one",
    ColdCrcIgnored "cold-crc-ignored" "checksums of what came from the bucket are not compared",
    DeleteBeforeGrace "delete-before-grace" "the deletion queue is carried out at once",
    SweepTheYoung "sweep-the-young" "objects that nobody names are deleted whatever their age",
    SweepWithStaleImage "sweep-with-stale-image" "the sweep looks for names in an image of some seconds ago",
    SweepWithoutFence "sweep-without-fence" "the sweep does not fence the uploads that it deletes",
    KeepDeleted "keep-deleted" "deletions are answered and not done",
    CacheKeyWithoutTopic "cache-key-without-topic" "chunks of the cache are told apart by upload number, and not by topic and incarnation",
    RetryWithoutDedup "retry-without-dedup" "sequences of idempotent producers are not looked at",
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Mistake {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.iter().copied().find(|mistake| mistake.name() == text).ok_or_else(|| {
            let known: Vec<&str> = Self::ALL.iter().map(|mistake| mistake.name()).collect();
            format!("`{text}` is none of {}", known.join(", "))
        })
    }
}

impl Mistake {
    /// The mistake of the testkit's careless layers that it is.
    pub(crate) const fn carelessness(self) -> Option<Carelessness> {
        match self {
            Self::AckBeforeWrite => Some(Carelessness::AckBeforeWrite),
            Self::CommitBeforeWrite => Some(Carelessness::CommitBeforeWrite),
            Self::LoseObject => Some(Carelessness::LoseObject),
            Self::RotObject => Some(Carelessness::RotObject),
            Self::KeepDeleted => Some(Carelessness::KeepDeleted),
            _ => None,
        }
    }

    /// Those that the disk makes.
    pub(crate) fn spoil(self, disk: &SimDisk) {
        match self {
            Self::JournalSyncLies => disk.inject(Fault::sync_lies().where_path_ends(".journal")),
            Self::DirectorySyncLies => disk.inject(Fault::dir_sync_lies()),
            Self::CommitNotDurable => {
                let is_controller = |path: &std::path::Path| path.starts_with("/controller");
                disk.inject(Fault::sync_lies().where_path(is_controller));
            }
            Self::HotCrcIgnored => {
                let flips = Fault::on(OperationKind::Read, FaultEffect::FlipBit);
                disk.inject(flips.where_path_ends(".log").after(2).times(6));
            }
            _ => {}
        }
    }

    pub(crate) fn of_log(self) -> tidelog_log::Mistakes {
        tidelog_log::Mistakes {
            ack_before_sync: self == Self::AckBeforeSync,
            free_journal_early: self == Self::FreeJournalEarly,
            checkpoint_without_sync: self == Self::CheckpointWithoutSync,
            ignore_interval_crc: self == Self::HotCrcIgnored,
            truncate_without_entry: false,
        }
    }

    pub(crate) fn of_replica(self) -> tidelog_replica::Mistakes {
        tidelog_replica::Mistakes {
            forget_producers: self == Self::RetryWithoutDedup,
            evict_unchecked: self == Self::EvictBeforeCommit,
        }
    }

    pub(crate) fn of_tier(self) -> tidelog_tier::Mistakes {
        tidelog_tier::Mistakes {
            ignore_interval_crc: self == Self::ColdCrcIgnored,
            evict_before_commit: self == Self::EvictBeforeCommit,
        }
    }
}
