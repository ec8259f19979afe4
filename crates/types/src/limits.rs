//! The file of limits: every bound that is not a setting, with its reason.

/// The longest topic name, in bytes: Kafka's rule, since a log folder carries the name and a partition there.
pub const TOPIC_NAME_BYTES_MAX: usize = 249;

/// Requests of one connection that are worked on at once. Kafka's clients keep 5; more than 16 would only queue here.
pub const CONNECTION_REQUESTS_IN_FLIGHT_MAX: usize = 16;

/// The largest frame that a Kafka client may send unless `socket.request.max.bytes` says otherwise: Kafka's default.
pub const REQUEST_BYTES_MAX_DEFAULT: usize = 100 * 1024 * 1024;

/// Batches remembered for each producer and partition, to recognise a retry: as many as clients keep in flight.
pub const PRODUCER_BATCHES_REMEMBERED: usize = 5;

/// The least and the most bytes of one record batch header.
pub const BATCH_HEADER_BYTES: usize = 61;

/// Manifest entries of a partition in the replicated state at which a spill to a page begins.
pub const MANIFEST_ENTRIES_SPILL: usize = 16;

/// Manifest entries of a partition in the replicated state at which a commit is refused until a spill is done.
pub const MANIFEST_ENTRIES_MAX: usize = 32;

/// A manifest page is closed at this size, so that one look-up costs one small read.
pub const MANIFEST_PAGE_BYTES_MAX: usize = 64 * 1024;

/// The largest segment object: one PUT, held in memory while it is sent.
pub const SEGMENT_OBJECT_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// One unit of the cold cache. A GET covers up to [`COLD_UNITS_PER_GET_MAX`] adjacent ones.
pub const COLD_UNIT_BYTES: u64 = 1024 * 1024;

/// Units that one ranged GET covers at most: 16 MiB moves in under 200 ms on one S3 connection.
pub const COLD_UNITS_PER_GET_MAX: u64 = 16;

/// Partitions of one topic: the largest count that one CreateTopics may ask for.
pub const PARTITIONS_PER_TOPIC_MAX: i32 = 10_000;

/// Producer ids in one block of the controller: Kafka's number.
pub const PRODUCER_ID_BLOCK: i64 = 1_000;

/// Producers that one partition remembers: at about 400 bytes each this bounds the state, and its snapshot, to 4 MB.
pub const PRODUCERS_PER_PARTITION_MAX: usize = 10_000;

/// Members of one group that were given an id and have not joined with it yet. They cost a client one request each and live
/// for a session timeout, so that a client in a loop would fill the memory without it.
pub const GROUP_PENDING_MEMBERS_MAX: usize = 10_000;

/// Memory for what members of all groups of a node say of themselves, which is kept until their sessions end: some hundred thousand
/// ordinary ones.
pub const GROUP_MEMBERS_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// What members that say more than others may take of it beyond what ordinary ones would, so that they leave room for those.
pub const GROUP_LARGE_MEMBERS_BYTES_MAX: u64 = 128 * 1024 * 1024;

/// What an ordinary member says of itself at most: the names of some hundred topics.
pub const GROUP_ORDINARY_MEMBER_BYTES_MAX: u64 = 16 * 1024;

/// One regular expression of a subscription. Kafka has no bound; here it holds somebody's thread while it is compiled.
pub const GROUP_PATTERN_BYTES_MAX: usize = 4 * 1024;

/// Operations that may wait in one lane of the disk; one more is answered with an error. Journal, write-behind and
/// checkpoints keep a few each: so many mean that the device no longer answers.
pub const DISK_QUEUE_OPERATIONS_MAX: usize = 65_536;

/// Reads that may wait in one lane of the disk; more wait before they are queued, where a dropped request costs nothing.
pub const DISK_READS_QUEUED_MAX: usize = 1_024;

/// Reads of segments that hold an open file at one time, whoever asks for them. Four threads read; the others wait before they
/// open anything, so that as many clients as there may be hold no descriptor each beside the log's budget of them.
pub const SEGMENT_READS_IN_FLIGHT_MAX: usize = 64;

/// The newest feature level that this version writes and reads.
pub const FEATURE_LEVEL: u16 = 1;

/// Brokers that may ever register, and that may have dynamic configurations: each is held in every controller's memory.
pub const BROKERS_MAX: usize = 1_000;

/// Groups that may have settings of their own: each is held in every controller's memory, and anybody may name one.
pub const GROUPS_WITH_SETTINGS_MAX: usize = 10_000;

/// Bytes of the id of such a group: a longer one follows the broker's settings.
pub const CONFIGURED_GROUP_ID_BYTES_MAX: usize = 1024;

/// Listeners of one broker: each is part of every metadata answer.
pub const LISTENERS_MAX: usize = 16;

/// Partitions of the whole cluster, so that the controllers' memory is bounded (a few kilobytes each with a manifest).
pub const PARTITIONS_MAX: usize = 100_000;

/// Configuration overrides of one resource: Kafka has fewer keys than this.
pub const CONFIG_KEYS_MAX: usize = 256;

/// Bytes of one configuration key or value: Kafka's limit for a string on the wire.
pub const CONFIG_VALUE_BYTES_MAX: usize = 32 * 1024;

/// How long a broker that is not heard of keeps its id from another data directory: Kafka's session timeout.
pub const BROKER_SESSION_MS: u64 = 9_000;

/// How long what left a manifest stays in the bucket, so that readers in flight finish, unless `tier.delete.grace.ms`
/// says otherwise: longer than any cold read's deadline.
pub const DELETION_GRACE_MS: u64 = 60_000;

/// Published copies of a manifest that are kept: a reader that found one by listing finishes while two newer appear.
pub const MANIFEST_COPIES_KEPT: usize = 3;

/// Page lines of one manifest: at 3,000 segments a page and 64 MiB a segment each covers 200 GB.
pub const MANIFEST_LINES_MAX: usize = 4_096;

/// The most bytes that one batch's records may decompress to where the broker must look inside: 64 times Kafka's default
/// `max.message.bytes`, so that no small batch can ask for all memory.
pub const DECOMPRESSED_BATCH_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Records that are looked into on the thread of the request: reading 64 KiB of uncompressed records takes well under
/// 200 microseconds.
pub const INSPECTED_INLINE_BYTES_MAX: usize = 64 * 1024;

/// Bytes of one command to the controllers: a batch of commits has a few hundred entries of about 100 bytes.
pub const COMMAND_BYTES_MAX: usize = 1024 * 1024;

/// Commands that one node has proposed and not heard of; one more is answered as busy. At a millisecond each it is a
/// second's queue.
pub const PROPOSALS_IN_FLIGHT_MAX: usize = 1_024;

/// The controllers' log file grows by this; the file that waits to be the next one has as much.
pub const RAFT_LOG_ALLOCATION_BYTES: u64 = 4 * 1024 * 1024;

/// Room in the controllers' log is allocated this far ahead of what is written: one command of the largest size beyond the
/// two floors below.
pub const RAFT_LOG_AHEAD_BYTES: u64 = 3 * 1024 * 1024;

/// Room that is kept on a full disk for commands that free space (topics deleted, log starts raised, segments committed):
/// some ten thousand of them, and what they leave behind is compacted in place.
pub const RAFT_LOG_FREEING_BYTES: u64 = 1536 * 1024;

/// Room that is kept on a full disk for what Raft itself must write: votes, a leader's first entry, purges.
pub const RAFT_LOG_OWN_BYTES: u64 = 256 * 1024;

/// A change of configuration up to this size counts as one that may free space: a shorter retention.
pub const FREEING_CONFIG_BYTES_MAX: usize = 16 * 1024;

/// The file that waits to be the controllers' next snapshot has at least this, and twice what the newest one has.
pub const RAFT_SNAPSHOT_ALLOCATION_BYTES: u64 = 256 * 1024;

/// The largest file of the controllers that is read into memory at a start; a larger one is not ours.
pub const RAFT_FILE_BYTES_MAX: usize = 1024 * 1024 * 1024;

/// How long a look-up by time asks the bucket when its request named no time of its own: below the 30 s after which clients
/// give a request up.
pub const COLD_LOOK_UP_DEADLINE: std::time::Duration = std::time::Duration::from_secs(20);

/// Batches that the broker decompresses for look-ups and checks at one time: each may take
/// [`DECOMPRESSED_BATCH_BYTES_MAX`] of memory and a core.
pub const CODEC_TURNS: usize = 4;

/// Partitions of one image that are created at one time: they share rounds of the journal, and one after another would take
/// a sync each.
pub const PARTITION_CREATIONS_IN_FLIGHT: usize = 64;

/// Partitions that are deleted at one time: each removes its files on a thread of those that write behind, half of which are left
/// to checkpoints and to the journal's new files.
pub const PARTITION_DELETIONS_IN_FLIGHT: usize = 4;

/// Records of a refused batch that are named to its producer, at most. A small frame may hold millions of them, and each is named with
/// a text.
pub const RECORDS_NAMED_MAX: usize = 1_000;
