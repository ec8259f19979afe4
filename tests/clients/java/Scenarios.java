import com.fasterxml.jackson.databind.JsonNode;
import java.io.File;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.ListConfigResourcesOptions;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.QuorumInfo;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The scenarios of tests/clients/README.md with the clients of Apache Kafka. */
final class Scenarios {
    private static final Map<String, String> CONFIGS = Map.of("retention.ms", "3600000", "max.message.bytes", "200000");
    static final int GROUP_PARTITIONS = 6;
    private static final int TRAFFIC_PAUSE_MS = 4;
    /** Administration: so many records, a millisecond from each to the next, of which the first are deleted. */
    private static final int RECORDS = 10;
    private static final int DELETED = 4;
    private static final Set<String> BROKER_KEYS = Set.of("group.consumer.heartbeat.interval.ms", "message.max.bytes");
    private static final long TIMES_BEGIN = 1_600_000_000_000L;
    private static final int RESTART_PARTITIONS = 3;
    private static final int RESTART_RECORDS = 400;
    private static final int RESTART_IN_FLIGHT_MAX = 60;

    private final Run run;

    Scenarios(Run run) {
        this.run = run;
    }

    Properties options(Object... pairs) {
        Properties made = new Properties();
        made.put("bootstrap.servers", run.bootstrap());
        for (int at = 0; at < pairs.length; at += 2) {
            made.put(pairs[at], pairs[at + 1]);
        }
        return made;
    }

    KafkaProducer<byte[], byte[]> producer(Object... pairs) {
        return new KafkaProducer<>(options(pairs), new ByteArraySerializer(), new ByteArraySerializer());
    }

    Properties consumerOptions(String group, String strategy) {
        Properties made = options(
            "key.deserializer", ByteArrayDeserializer.class, "value.deserializer", ByteArrayDeserializer.class,
            "auto.offset.reset", "earliest", "enable.auto.commit", "false", "fetch.max.wait.ms", "200");
        if (group == null) {
            return made;
        }
        made.put("group.id", group);
        if (strategy.equals("consumer")) {
            made.put("group.protocol", "consumer");
            return made;
        }
        made.put("session.timeout.ms", "10000");
        made.put("heartbeat.interval.ms", "300");
        String name = strategy.equals("eager") ? "RangeAssignor" : "CooperativeStickyAssignor";
        made.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer." + name);
        return made;
    }

    void create(String topic, int partitions) throws Exception {
        create(topic, partitions, Map.of());
    }

    private void create(String topic, int partitions, Map<String, String> configs) throws Exception {
        try (Admin admin = Admin.create(options())) {
            admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1).configs(configs))).all().get();
        }
    }

    private static byte[] bytes(JsonNode text) {
        return text.isNull() ? null : text.asText().getBytes(StandardCharsets.UTF_8);
    }

    private static String text(byte[] bytes) {
        return bytes == null ? null : new String(bytes, StandardCharsets.UTF_8);
    }

    static String refusal(Future<?> answer) throws InterruptedException {
        try {
            answer.get();
        } catch (ExecutionException failed) {
            return failed.getCause().getClass().getSimpleName();
        }
        throw new IllegalStateException("not refused");
    }

    private static List<Integer> partitions(Admin admin, String topic) throws Exception {
        return describe(admin, topic).partitions().stream().map(part -> part.partition()).sorted().toList();
    }

    private static TopicDescription describe(Admin admin, String topic) throws Exception {
        return admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
    }

    private static Map<String, String> configs(Admin admin, ConfigResource resource) throws Exception {
        Map<String, String> found = new TreeMap<>();
        admin.describeConfigs(List.of(resource)).all().get().get(resource).entries()
            .forEach(entry -> found.put(entry.name(), entry.value()));
        return found;
    }

    private static Object[] pairs(Map<String, String> map) {
        return map.entrySet().stream().flatMap(entry -> java.util.stream.Stream.of(entry.getKey(), entry.getValue())).toArray();
    }

    /** A condition whose failure is one of the scenario. */
    interface Condition {
        boolean holds() throws Exception;
    }

    static void until(Condition condition, String what) throws InterruptedException {
        Run.until(() -> {
            try {
                return condition.holds();
            } catch (Exception failed) {
                throw new IllegalStateException(failed);
            }
        }, () -> what);
    }

    void administration() throws Exception {
        String topic = run.name("");
        try (Admin admin = Admin.create(options())) {
            List<NewTopic> wanted = List.of(new NewTopic(topic, 2, (short) 1).configs(CONFIGS));
            admin.createTopics(wanted).all().get();
            run.tell("created", "error", refusal(admin.createTopics(wanted).all()));
            run.tell("listed", "found", admin.listTopics().names().get().contains(topic));
            List<Integer> replicas = describe(admin, topic).partitions().stream().map(part -> part.replicas().size()).toList();
            run.tell("described", "partitions", partitions(admin, topic), "replicas", replicas);
            ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
            run.tell("configs", pairs(configs(admin, resource)));
            AlterConfigOp set = new AlterConfigOp(new ConfigEntry("retention.ms", "7200000"), AlterConfigOp.OpType.SET);
            admin.incrementalAlterConfigs(Map.of(resource, List.of(set))).all().get();
            until(() -> configs(admin, resource).get("retention.ms").equals("7200000"), "the altered value");
            run.tell("altered", pairs(configs(admin, resource)));
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(5))).all().get();
            until(() -> partitions(admin, topic).size() == 5, "five partitions");
            run.tell("grown", "partitions", partitions(admin, topic));
            admin.deleteTopics(List.of(topic)).all().get();
            until(() -> !admin.listTopics().names().get().contains(topic), "the topic is gone");
            run.tell("deleted", "error", refusal(admin.deleteTopics(List.of(topic)).all()));
        }
    }

    /** The cluster, a broker's settings, and what of a partition is asked and changed by hand. */
    void administrationCluster() throws Exception {
        TopicPartition part = new TopicPartition(run.name(""), 0);
        create(part.topic(), 2, Map.of("retention.ms", "-1"));
        try (Admin admin = Admin.create(options()); KafkaProducer<byte[], byte[]> producer = producer("acks", "all")) {
            for (int number = 0; number < RECORDS; number++) {
                producer.send(new ProducerRecord<>(part.topic(), 0, TIMES_BEGIN + number, null, new byte[1]));
            }
            producer.flush();
            DescribeClusterResult cluster = admin.describeCluster();
            List<List<Object>> brokers = cluster.nodes().get().stream()
                .map(node -> List.<Object>of(node.id(), node.host() + ":" + node.port())).toList();
            run.tell("cluster", "brokers", brokers, "controller", cluster.controller().get().id(), "id", cluster.clusterId().get());
            brokerConfigs(admin);
            run.tell("offsets", "offsets", offsets(admin, part));
            long low = admin.deleteRecords(Map.of(part, RecordsToDelete.beforeOffset(DELETED))).lowWatermarks().get(part).get()
                .lowWatermark();
            run.tell("records-deleted", "low", low, "first", consume(part.topic(), 0, 1).get(0).offset());
            looks(admin, part);
        }
    }

    private void brokerConfigs(Admin admin) throws Exception {
        ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, "1");
        run.tell("broker", "configs", brokerConfigs(admin, broker));
        ConfigEntry entry = new ConfigEntry("message.max.bytes", "2000000");
        Map<String, AlterConfigOp.OpType> changes = new LinkedHashMap<>();
        changes.put("broker-altered", AlterConfigOp.OpType.SET);
        changes.put("broker-restored", AlterConfigOp.OpType.DELETE);
        for (Map.Entry<String, AlterConfigOp.OpType> change : changes.entrySet()) {
            String wanted = change.getValue() == AlterConfigOp.OpType.SET ? entry.value() : "1048588";
            admin.incrementalAlterConfigs(Map.of(broker, List.of(new AlterConfigOp(entry, change.getValue())))).all().get();
            until(() -> brokerConfigs(admin, broker).get(entry.name()).equals(wanted), change.getKey());
            run.tell(change.getKey(), "configs", brokerConfigs(admin, broker));
        }
    }

    private static Map<String, String> brokerConfigs(Admin admin, ConfigResource broker) throws Exception {
        Map<String, String> found = configs(admin, broker);
        found.keySet().retainAll(BROKER_KEYS);
        return found;
    }

    private static Map<String, Long> offsets(Admin admin, TopicPartition part) throws Exception {
        Map<String, OffsetSpec> asked = Map.of(
            "earliest", OffsetSpec.earliest(), "latest", OffsetSpec.latest(), "newest", OffsetSpec.maxTimestamp(),
            "at", OffsetSpec.forTimestamp(TIMES_BEGIN + 7), "later", OffsetSpec.forTimestamp(TIMES_BEGIN + RECORDS));
        Map<String, Long> found = new TreeMap<>();
        for (Map.Entry<String, OffsetSpec> spec : asked.entrySet()) {
            found.put(spec.getKey(), admin.listOffsets(Map.of(part, spec.getValue())).partitionResult(part).get().offset());
        }
        return found;
    }

    /** Steps that only ask. */
    private void looks(Admin admin, TopicPartition part) throws Exception {
        List<List<Object>> partitions = new ArrayList<>();
        Map<Integer, List<List<Object>>> brokers = new TreeMap<>();
        admin.describeLogDirs(List.of(1)).allDescriptions().get().forEach((broker, folders) -> {
            brokers.put(broker, partitions);
            folders.values().forEach(folder -> folder.replicaInfos().forEach((replica, info) -> {
                if (replica.topic().equals(part.topic())) {
                    partitions.add(List.of(replica.partition(), info.size(), info.offsetLag(), info.isFuture()));
                }
            }));
        });
        partitions.sort(Comparator.comparing(told -> (Integer) told.get(0)));
        run.tell("log-dirs", "broker", brokers.keySet().iterator().next(), "partitions", partitions);
        Throwable error = admin.electLeaders(ElectionType.PREFERRED, Set.of(part)).partitions().get().get(part).orElseThrow();
        run.tell("elected", "error", error.getClass().getSimpleName());
        run.tell("reassignments", "ongoing", admin.listPartitionReassignments().reassignments().get().keySet());
        List<List<Integer>> producers = admin.describeProducers(List.of(part)).partitionResult(part).get().activeProducers().stream()
            .map(producer -> List.of(producer.producerEpoch(), producer.lastSequence())).toList();
        run.tell("producers", "producers", producers);
        Set<String> finalized = new TreeSet<>(admin.describeFeatures().featureMetadata().get().finalizedFeatures().keySet());
        run.tell("features", "finalized", finalized);
        QuorumInfo quorum = admin.describeMetadataQuorum().quorumInfo().get();
        run.tell("quorum", "leader", quorum.leaderId(), "voters", quorum.voters().stream().map(voter -> voter.replicaId()).toList(),
            "observers", quorum.observers().stream().map(observer -> observer.replicaId()).toList());
        Collection<ConfigResource> resources = admin.listConfigResources(
            Set.of(ConfigResource.Type.TOPIC, ConfigResource.Type.CLIENT_METRICS), new ListConfigResourcesOptions()).all().get();
        run.tell("resources", "topic", resources.contains(new ConfigResource(ConfigResource.Type.TOPIC, part.topic())),
            "metrics", resources.stream().filter(resource -> resource.type() == ConfigResource.Type.CLIENT_METRICS).count());
    }

    void records() throws Exception {
        JsonNode told = Run.JSON.readTree(new File(run.recordsFile()));
        JsonNode sent = told.get("records");
        Map<String, String> topics = new LinkedHashMap<>();
        for (JsonNode wanted : told.get("topics")) {
            String topic = run.name("-" + wanted.get("topic").asText());
            topics.put(wanted.get("topic").asText(), topic);
            Map<String, String> configs = new TreeMap<>();
            wanted.get("configs").properties().forEach(config -> configs.put(config.getKey(), config.getValue().asText()));
            create(topic, 1, configs);
            List<Future<RecordMetadata>> futures = new ArrayList<>();
            try (KafkaProducer<byte[], byte[]> producer = producer(
                    "compression.type", wanted.get("codec").asText(), "linger.ms", "20")) {
                for (JsonNode record : sent) {
                    List<Header> headers = new ArrayList<>();
                    record.get("headers").forEach(pair -> headers.add(new RecordHeader(pair.get(0).asText(), bytes(pair.get(1)))));
                    futures.add(producer.send(new ProducerRecord<>(
                        topic, 0, record.get("timestamp").asLong(), bytes(record.get("key")), bytes(record.get("value")), headers)));
                }
            }
            List<Long> offsets = new ArrayList<>();
            for (Future<RecordMetadata> future : futures) {
                offsets.add(future.get().offset());
            }
            run.tell("produced", "topic", wanted.get("topic").asText(), "offsets", offsets);
        }
        for (String state : List.of("hot", "cold")) {
            if (state.equals("cold")) {
                run.await("cold", List.copyOf(topics.values()));
            }
            for (Map.Entry<String, String> topic : topics.entrySet()) {
                List<Map<String, Object>> found = new ArrayList<>();
                for (ConsumerRecord<byte[], byte[]> record : consume(topic.getValue(), 0, sent.size())) {
                    found.add(tellable(record));
                }
                run.tell("consumed", "state", state, "topic", topic.getKey(), "records", found);
            }
        }
    }

    private static Map<String, Object> tellable(ConsumerRecord<byte[], byte[]> record) {
        List<List<String>> headers = new ArrayList<>();
        for (Header header : record.headers()) {
            headers.add(java.util.Arrays.asList(header.key(), text(header.value())));
        }
        Map<String, Object> told = new LinkedHashMap<>();
        told.put("offset", record.offset());
        told.put("timestamp", record.timestamp());
        told.put("key", text(record.key()));
        told.put("value", text(record.value()));
        told.put("headers", headers);
        return told;
    }

    private List<ConsumerRecord<byte[], byte[]>> consume(String topic, int partition, int count) {
        List<ConsumerRecord<byte[], byte[]>> found = new ArrayList<>();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(consumerOptions(null, null))) {
            TopicPartition part = new TopicPartition(topic, partition);
            consumer.assign(List.of(part));
            consumer.seekToBeginning(List.of(part));
            read(consumer, count, found);
        }
        return found;
    }

    static void read(KafkaConsumer<byte[], byte[]> consumer, int count, List<ConsumerRecord<byte[], byte[]>> found) {
        long deadline = System.currentTimeMillis() + 30_000;
        while (found.size() < count) {
            if (System.currentTimeMillis() > deadline) {
                throw new IllegalStateException(found.size() + " of " + count + " came");
            }
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
                if (found.size() < count) {
                    found.add(record);
                }
            }
        }
    }

    static Map<String, List<Integer>> stable(Map<String, Member> members) throws Exception {
        int share = GROUP_PARTITIONS / members.size();
        Map<String, List<Integer>> assignments = new LinkedHashMap<>();
        until(() -> {
            Set<Integer> all = new TreeSet<>();
            for (Map.Entry<String, Member> member : members.entrySet()) {
                member.getValue().check();
                assignments.put(member.getKey(), member.getValue().partitions());
                all.addAll(member.getValue().partitions());
            }
            int owned = assignments.values().stream().mapToInt(List::size).sum();
            boolean fair = assignments.values().stream().allMatch(partitions -> partitions.size() >= share);
            return all.size() == GROUP_PARTITIONS && owned == GROUP_PARTITIONS && fair;
        }, "assignments settle: " + members.keySet());
        return assignments;
    }

    /** Numbers into a topic's partitions in turn, until it is stopped. */
    final class Traffic implements Runnable {
        final Set<Integer> acknowledged = new ConcurrentSkipListSet<>();
        final AtomicReference<Exception> error = new AtomicReference<>();
        private final Thread thread = new Thread(this, "traffic");
        private final String topic;
        private volatile boolean over;

        Traffic(String topic) {
            this.topic = topic;
            thread.setDaemon(true);
            thread.start();
        }

        @Override
        public void run() {
            try (KafkaProducer<byte[], byte[]> producer = producer("acks", "all", "enable.idempotence", "false", "linger.ms", "1")) {
                for (int next = 0; !over; next++) {
                    int number = next;
                    send(producer, topic, number % GROUP_PARTITIONS, number, (offset, failed) -> {
                        if (failed == null) {
                            acknowledged.add(number);
                        } else {
                            error.set(failed);
                        }
                    });
                    Thread.sleep(TRAFFIC_PAUSE_MS);
                }
            } catch (InterruptedException ended) {
                error.set(ended);
            }
        }

        void stop() throws Exception {
            over = true;
            thread.join();
            if (error.get() != null) {
                throw error.get();
            }
        }
    }

    /** Told once for each record that was sent. */
    interface Done {
        void told(long offset, Exception failed);
    }

    static void send(KafkaProducer<byte[], byte[]> producer, String topic, int partition, int number, Done done) {
        byte[] value = Integer.toString(number).getBytes(StandardCharsets.UTF_8);
        producer.send(new ProducerRecord<>(topic, partition, null, value),
            (metadata, failed) -> done.told(failed == null ? metadata.offset() : -1, failed));
    }

    void group(String strategy) throws Exception {
        String topic = run.name("");
        create(topic, GROUP_PARTITIONS);
        Traffic traffic = new Traffic(topic);
        Map<String, Member> members = new LinkedHashMap<>();
        for (String name : List.of("first", "second", "third")) {
            members.put(name, new Member(consumerOptions(run.name("-group"), strategy), topic));
        }
        Member first = members.get("first");
        Member second = members.get("second");
        Member third = members.get("third");
        first.start();
        second.start();
        Map<String, Member> two = new LinkedHashMap<>();
        two.put("first", first);
        two.put("second", second);
        Map<String, List<Integer>> before = stable(two);
        run.tell("two", "assignments", before);
        // Of what each has now: what it read before says nothing of it.
        long settled = System.nanoTime();
        until(() -> two.entrySet().stream().allMatch(member ->
            member.getValue().between(before.get(member.getKey()), settled, System.nanoTime()) > 0), "records come");
        for (Member member : two.values()) {
            synchronized (member) {
                member.revoked.clear();
            }
        }
        long begun = System.nanoTime();
        third.start();
        Map<String, List<Integer>> after = stable(members);
        Map<String, Long> kept = new LinkedHashMap<>();
        Map<String, Collection<Integer>> revoked = new LinkedHashMap<>();
        two.forEach((name, member) -> {
            List<Integer> staying = before.get(name).stream().filter(after.get(name)::contains).toList();
            kept.put(name, member.between(staying, begun, third.firstAssigned()));
            revoked.put(name, member.revoked);
        });
        List<Integer> lost = new ArrayList<>(first.lost);
        lost.addAll(second.lost);
        run.tell("three", "assignments", after, "revoked", revoked, "lost", lost, "kept_records", kept);
        second.leave();
        members.remove("second");
        run.tell("left", "assignments", stable(members));
        traffic.stop();
        List<Integer> missing = missing(traffic, List.of(first, second, third));
        first.leave();
        third.leave();
        run.tell("done", "acknowledged", traffic.acknowledged.size(), "missing", missing);
    }

    /** What was acknowledged and came to none of the members, once there is no more of it. */
    static List<Integer> missing(Traffic traffic, List<Member> members) throws Exception {
        List<Integer> missing = new ArrayList<>();
        until(() -> {
            missing.clear();
            traffic.acknowledged.stream()
                .filter(number -> members.stream().noneMatch(member -> member.hasSeen(number)))
                .forEach(missing::add);
            return missing.isEmpty();
        }, "everything is seen");
        return missing;
    }

    void commit(String strategy) throws Exception {
        String topic = run.name("");
        String group = run.name("-group");
        create(topic, 2);
        Map<String, Integer> sessions = new LinkedHashMap<>();
        sessions.put("first", 70);
        sessions.put("second", 70);
        sessions.put("third", 60);
        try (KafkaProducer<byte[], byte[]> producer = producer("acks", "all")) {
            for (int number = 0; number < 200; number++) {
                send(producer, topic, number % 2, number, (offset, failed) -> { });
            }
        }
        for (Map.Entry<String, Integer> session : sessions.entrySet()) {
            List<ConsumerRecord<byte[], byte[]>> found = new ArrayList<>();
            try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(consumerOptions(group, strategy))) {
                consumer.subscribe(List.of(topic));
                read(consumer, session.getValue(), found);
                Map<TopicPartition, OffsetAndMetadata> next = new LinkedHashMap<>();
                found.forEach(record -> next.put(
                    new TopicPartition(topic, record.partition()), new OffsetAndMetadata(record.offset() + 1, "so far")));
                consumer.commitSync(next);
            }
            run.tell(session.getKey(), "records", found.stream()
                .map(record -> List.of(record.partition(), record.offset(), Long.parseLong(text(record.value())))).toList());
        }
        try (Admin admin = Admin.create(options())) {
            Map<Integer, Long> offsets = new TreeMap<>();
            admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get()
                .forEach((part, at) -> offsets.put(part.partition(), at.offset()));
            run.tell("committed", "offsets", offsets);
        }
    }

    /** A group whose committed offset the log no longer has, or never had: of ten records the first four are deleted. */
    void reset() throws Exception {
        String topic = run.name("");
        TopicPartition part = new TopicPartition(topic, 0);
        create(topic, 1);
        try (Admin admin = Admin.create(options()); KafkaProducer<byte[], byte[]> producer = producer("acks", "all")) {
            for (int number = 0; number < 10; number++) {
                send(producer, topic, 0, number, (offset, failed) -> { });
            }
            producer.flush();
            admin.deleteRecords(Map.of(part, RecordsToDelete.beforeOffset(4))).all().get();
            reset(admin, producer, part, "within", 7, "earliest");
            reset(admin, producer, part, "below-earliest", 2, "earliest");
            reset(admin, producer, part, "above-earliest", 1_000_000, "earliest");
            reset(admin, producer, part, "below-latest", 2, "latest");
            reset(admin, producer, part, "above-latest", 1_000_000, "latest");
        }
    }

    /** What a look-up by time finds, of a log without records, with some, and with none any more. */
    void times() throws Exception {
        TopicPartition part = new TopicPartition(run.name(""), 0);
        // The records are years old.
        create(part.topic(), 1, Map.of("retention.ms", "-1"));
        try (Admin admin = Admin.create(options());
                KafkaProducer<byte[], byte[]> producer = producer("acks", "all");
                KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(consumerOptions(null, null))) {
            run.tell("empty", "found", at(consumer, part, 0));
            for (int number = 0; number < 10; number++) {
                producer.send(new ProducerRecord<>(part.topic(), 0, TIMES_BEGIN + number, null, new byte[1]));
            }
            producer.flush();
            admin.deleteRecords(Map.of(part, RecordsToDelete.beforeOffset(4))).all().get();
            run.tell("records", "begin", at(consumer, part, 0), "exact", at(consumer, part, TIMES_BEGIN + 7),
                "later", at(consumer, part, TIMES_BEGIN + 10));
            admin.deleteRecords(Map.of(part, RecordsToDelete.beforeOffset(10))).all().get();
            run.tell("emptied", "found", at(consumer, part, 0));
        }
    }

    private static List<Long> at(KafkaConsumer<byte[], byte[]> consumer, TopicPartition part, long time) {
        OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(part, time)).get(part);
        return found == null ? null : List.of(found.offset(), found.timestamp());
    }

    private void reset(
        Admin admin, KafkaProducer<byte[], byte[]> producer, TopicPartition part, String step, long offset, String policy
    ) throws Exception {
        String group = run.name("-" + step);
        admin.alterConsumerGroupOffsets(group, Map.of(part, new OffsetAndMetadata(offset))).all().get();
        Properties options = consumerOptions(group, "eager");
        options.put("auto.offset.reset", policy);
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(options)) {
            long begin = consumer.beginningOffsets(List.of(part)).get(part);
            long end = consumer.endOffsets(List.of(part)).get(part);
            consumer.subscribe(List.of(part.topic()));
            List<Long> found = new ArrayList<>();
            until(() -> {
                // Who goes to the end sees only what comes once it is there.
                if (policy.equals("latest")) {
                    send(producer, part.topic(), 0, 0, (at, failed) -> { });
                    producer.flush();
                }
                consumer.poll(Duration.ofMillis(200)).forEach(record -> found.add(record.offset()));
                return !found.isEmpty();
            }, step + ": a record comes");
            run.tell(step, "first", found.get(0), "begin", begin, "end", end);
        }
    }

    void restarts() throws Exception {
        String topic = run.name("");
        int of = RESTART_PARTITIONS * RESTART_RECORDS;
        create(topic, RESTART_PARTITIONS);
        List<List<Object>> acknowledged = new ArrayList<>();
        List<String> errors = new ArrayList<>();
        Semaphore slots = new Semaphore(RESTART_IN_FLIGHT_MAX);
        try (KafkaProducer<byte[], byte[]> producer = producer(
                "acks", "all", "enable.idempotence", "true", "linger.ms", "1", "batch.size", "200",
                "reconnect.backoff.max.ms", "200", "retry.backoff.ms", "50", "delivery.timeout.ms", "180000")) {
            for (int next = 0; next < of; next++) {
                int number = next;
                slots.acquire();
                send(producer, topic, number % RESTART_PARTITIONS, number, (offset, failed) -> {
                    synchronized (acknowledged) {
                        if (failed == null) {
                            acknowledged.add(List.of(number % RESTART_PARTITIONS, offset, number));
                        } else {
                            errors.add(failed.toString());
                        }
                        if (acknowledged.size() % 10 == 0) {
                            run.tell("progress", "acknowledged", acknowledged.size(), "of", of);
                        }
                    }
                    slots.release();
                });
                if (number < RESTART_PARTITIONS) {
                    // The first of each partition alone: Kafka takes any sequence number from a producer that it does not know, so
                    // that a second batch may pass the first where the partition has only just come to be.
                    producer.flush();
                }
            }
        }
        if (!errors.isEmpty()) {
            throw new IllegalStateException(errors.size() + " were not acknowledged: " + errors.get(0));
        }
        Map<Integer, List<List<Object>>> consumed = new TreeMap<>();
        for (int partition = 0; partition < RESTART_PARTITIONS; partition++) {
            List<List<Object>> found = new ArrayList<>();
            for (ConsumerRecord<byte[], byte[]> record : consume(topic, partition, RESTART_RECORDS)) {
                found.add(List.of(record.offset(), Integer.parseInt(text(record.value()))));
            }
            consumed.put(partition, found);
        }
        run.tell("done", "acknowledged", acknowledged, "consumed", consumed, "of", of);
    }
}
