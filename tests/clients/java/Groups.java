import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.admin.MemberToRemove;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.TopicPartition;

/** What befalls groups beside rebalances: static members that restart, another protocol, a topic that is made again, administration. */
final class Groups {
    /** Some heartbeats: who has to join again hears of it within one. */
    private static final long QUIET_MS = 1000;
    private static final int OLD_RECORDS = 300;
    private static final int OLD_COMMITTED = 50;
    private static final int NEW_BEGIN = 1000;
    private static final int NEW_RECORDS = 100;
    private static final String INSTANCE = "instance";

    private final Run run;
    private final Scenarios scenarios;
    private final String topic;
    private final String group;

    Groups(Run run, Scenarios scenarios) {
        this.run = run;
        this.scenarios = scenarios;
        this.topic = run.name("");
        this.group = run.name("-group");
    }

    private interface Action {
        void run() throws Exception;
    }

    /** Static members that come again within their session: into a settled group, beside themselves, and into a rebalance. */
    void statics() throws Exception {
        scenarios.create(topic, Scenarios.GROUP_PARTITIONS);
        Map<String, Member> members = new LinkedHashMap<>();
        begin(members, "first");
        Scenarios.stable(members);
        begin(members, "second");
        begin(members, "third");
        try (Admin admin = Admin.create(scenarios.options())) {
            // The first has been there longest, and leads.
            for (Map.Entry<String, String> restarted : List.of(Map.entry("follower", "second"), Map.entry("leader", "first"))) {
                around(restarted.getKey(), members, () -> {
                    members.get(restarted.getValue()).leave();
                    begin(members, restarted.getValue());
                });
            }
            Member old = members.get("second");
            around("twice", members, () -> begin(members, "second"));
            run.tell("fenced", "error", old.fate());
            around("rebalancing", members, () -> {
                members.get("second").leave();
                members.get("third").leave();
                begin(members, "fourth");
                Scenarios.until(() -> describe(admin).groupState() == GroupState.PREPARING_REBALANCE, "a rebalance begins");
                rejoin(admin, members);
                // Gone while its join waits for the third.
                members.get("second").leave();
                rejoin(admin, members);
                run.tell("waiting", "state", describe(admin).groupState().toString());
                begin(members, "third");
            });
            run.tell("described", "instances", describe(admin).members().stream()
                .map(member -> member.groupInstanceId().orElse("none")).sorted().toList());
        }
        for (Member member : members.values()) {
            member.leave();
        }
    }

    private void begin(Map<String, Member> members, String name) {
        Properties options = scenarios.consumerOptions(group, "eager");
        options.put("session.timeout.ms", "30000");
        options.put("group.instance.id", name);
        members.put(name, new Member(options, topic));
        members.get(name).start();
    }

    /** The second comes again, as another member of the same instance. */
    private void rejoin(Admin admin, Map<String, Member> members) throws Exception {
        String before = second(admin);
        begin(members, "second");
        Scenarios.until(() -> !second(admin).equals(before), "the second is another member");
    }

    private String second(Admin admin) throws Exception {
        return describe(admin).members().stream().filter(member -> member.groupInstanceId().equals(Optional.of("second")))
            .map(MemberDescription::consumerId).findFirst().orElseThrow();
    }

    private ConsumerGroupDescription describe(Admin admin) throws Exception {
        return admin.describeConsumerGroups(List.of(group)).all().get().get(group);
    }

    /** Tells what an action changed for the members, and for those who were there before and stayed. */
    private void around(String step, Map<String, Member> members, Action action) throws Exception {
        Map<String, List<Integer>> before = Scenarios.stable(members);
        Map<String, Member> earlier = new LinkedHashMap<>(members);
        Map<String, Integer> changes = new LinkedHashMap<>();
        members.forEach((name, member) -> changes.put(name, member.changes()));
        int generation = agreed(members);
        action.run();
        Scenarios.stable(members);
        agreed(members);
        Thread.sleep(QUIET_MS);
        Map<String, List<Integer>> after = Scenarios.stable(members);
        earlier.forEach((name, member) -> changes.computeIfPresent(
            name, (own, count) -> members.get(own) == member ? member.changes() - count : null));
        int generations = agreed(members) - generation;
        run.tell(step, "before", before, "after", after, "changes", changes, "generations", generations);
    }

    /** The generation that all are of. */
    private static int agreed(Map<String, Member> members) throws Exception {
        Set<Integer> generations = new TreeSet<>();
        Scenarios.until(() -> {
            generations.clear();
            members.values().forEach(member -> generations.add(member.generation()));
            return generations.size() == 1;
        }, "all are of one generation");
        return generations.iterator().next();
    }

    /** A member of the consumer protocol comes into a classic group and leaves it again. */
    void migration() throws Exception {
        scenarios.create(topic, Scenarios.GROUP_PARTITIONS);
        Scenarios.Traffic traffic = scenarios.new Traffic(topic);
        Member classic = new Member(scenarios.consumerOptions(group, "eager"), topic);
        Member modern = new Member(scenarios.consumerOptions(group, "consumer"), topic);
        try (Admin admin = Admin.create(scenarios.options())) {
            classic.start();
            Map<String, Member> members = new LinkedHashMap<>(Map.of("classic", classic));
            phase(admin, "classic", members);
            modern.start();
            members.put("modern", modern);
            phase(admin, "upgraded", members);
            modern.leave();
            members.remove("modern");
            phase(admin, "downgraded", members);
        }
        traffic.stop();
        List<Integer> missing = Scenarios.missing(traffic, List.of(classic, modern));
        classic.leave();
        run.tell("done", "acknowledged", traffic.acknowledged.size(), "missing", missing);
    }

    /** Tells of a group that is settled and whose members get records of all that they own. */
    private void phase(Admin admin, String step, Map<String, Member> members) throws Exception {
        Map<String, List<Integer>> assignments = Scenarios.stable(members);
        long begun = System.nanoTime();
        for (Map.Entry<String, Member> member : members.entrySet()) {
            for (int partition : assignments.get(member.getKey())) {
                Scenarios.until(
                    () -> member.getValue().between(List.of(partition), begun, Long.MAX_VALUE) > 0, step + ": records of " + partition);
            }
        }
        run.tell(step, "assignments", assignments, "type", describe(admin).type().toString());
    }

    /** A topic is deleted and made again under a member that runs, and under a group whose member comes again. */
    void recreated() throws Exception {
        String stopped = run.name("-stopped");
        scenarios.create(topic, 1);
        produce(new TopicPartition(topic, 0), 0, OLD_RECORDS);
        run.await("cold", List.of(topic));
        Properties options = scenarios.consumerOptions(group, "eager");
        // Or it makes the topic itself, where the node lets it.
        options.put("allow.auto.create.topics", "false");
        Member running = new Member(options, topic);
        running.start();
        readAndGo(stopped);
        try (Admin admin = Admin.create(scenarios.options())) {
            Scenarios.until(() -> committed(admin, group).equals(List.of((long) OLD_RECORDS)), "the end is committed");
            run.tell("before", "committed", committed(admin, stopped));
            admin.deleteTopics(List.of(topic)).all().get();
            Scenarios.until(() -> !admin.listTopics().names().get().contains(topic), "the topic is gone");
            Scenarios.until(() -> committed(admin, stopped).isEmpty(), "its offsets are gone");
            scenarios.create(topic, 1);
            produce(new TopicPartition(topic, 0), NEW_BEGIN, NEW_RECORDS);
            Member again = new Member(scenarios.consumerOptions(stopped, "eager"), topic);
            again.start();
            for (Map.Entry<String, Member> member : Map.of("restarted", again, "running", running).entrySet()) {
                Scenarios.until(() -> member.getValue().hasSeen(NEW_BEGIN + NEW_RECORDS - 1), member.getKey() + " sees the last record");
                member.getValue().leave();
                run.tell(member.getKey(), "numbers", member.getValue().numbers(member.getValue() == running ? NEW_BEGIN : 0));
            }
        }
    }

    /** A group of each protocol is looked at and changed by hand: with a member, without one, and until it is no more. */
    void administration() throws Exception {
        scenarios.create(topic, 2);
        produce(new TopicPartition(topic, 0), 0, 5);
        produce(new TopicPartition(topic, 1), 5, 5);
        try (Admin admin = Admin.create(scenarios.options())) {
            administration(admin, "", group, "eager");
            administration(admin, "consumer-", run.name("-consumer"), "consumer");
        }
    }

    private void administration(Admin admin, String prefix, String name, String protocol) throws Exception {
        TopicPartition part = new TopicPartition(topic, 0);
        Properties options = scenarios.consumerOptions(name, protocol);
        boolean instance = protocol.equals("eager");
        if (instance) {
            // It goes without a word, and stays in the group until somebody removes it.
            options.put("group.instance.id", INSTANCE);
        }
        Member member = new Member(options, topic);
        member.start();
        Scenarios.until(() -> {
            member.check();
            return offsets(admin, name).equals(Map.of(0, 5L, 1, 5L));
        }, "the end is committed");
        tell(admin, prefix + "member", name);
        run.tell(prefix + "refused", "error", Scenarios.refusal(admin.deleteConsumerGroups(List.of(name)).all()));
        run.tell(prefix + "subscribed", "error",
            Scenarios.refusal(admin.deleteConsumerGroupOffsets(name, Set.of(part)).partitionResult(part)));
        member.leave();
        if (instance) {
            tell(admin, prefix + "stayed", name);
            MemberToRemove removed = new MemberToRemove(INSTANCE);
            admin.removeMembersFromConsumerGroup(name, new RemoveMembersFromConsumerGroupOptions(List.of(removed))).all().get();
        }
        tell(admin, prefix + "empty", name);
        run.tell(prefix + "listed", "groups", listed(admin, name));
        run.tell(prefix + "offsets", "offsets", offsets(admin, name));
        admin.alterConsumerGroupOffsets(name, Map.of(part, new OffsetAndMetadata(2))).all().get();
        run.tell(prefix + "altered", "offsets", offsets(admin, name));
        admin.deleteConsumerGroupOffsets(name, Set.of(part)).all().get();
        run.tell(prefix + "offset-deleted", "offsets", offsets(admin, name));
        admin.deleteConsumerGroups(List.of(name)).all().get();
        run.tell(prefix + "deleted", "error", Scenarios.refusal(admin.deleteConsumerGroups(List.of(name)).all()),
            "groups", listed(admin, name));
    }

    private void tell(Admin admin, String step, String name) throws Exception {
        ConsumerGroupDescription told = admin.describeConsumerGroups(List.of(name)).all().get().get(name);
        List<List<Integer>> members = told.members().stream().map(member -> member.assignment().topicPartitions().stream()
            .map(TopicPartition::partition).sorted().toList()).toList();
        run.tell(step, "state", told.groupState().toString(), "assignor", told.partitionAssignor(), "members", members);
    }

    private static List<List<String>> listed(Admin admin, String name) throws Exception {
        return admin.listGroups().all().get().stream().filter(told -> told.groupId().equals(name))
            .map(told -> List.of(told.groupState().orElseThrow().toString(), told.type().orElseThrow().toString())).toList();
    }

    static Map<Integer, Long> offsets(Admin admin, String name) throws Exception {
        Map<Integer, Long> found = new TreeMap<>();
        admin.listConsumerGroupOffsets(name).partitionsToOffsetAndMetadata().get()
            .forEach((part, at) -> found.put(part.partition(), at.offset()));
        return found;
    }

    private void readAndGo(String stopped) {
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(scenarios.consumerOptions(stopped, "eager"))) {
            consumer.subscribe(List.of(topic));
            Scenarios.read(consumer, OLD_COMMITTED, new ArrayList<>());
            consumer.commitSync(Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(OLD_COMMITTED)));
        }
    }

    private void produce(TopicPartition part, int begin, int count) {
        try (KafkaProducer<byte[], byte[]> producer = scenarios.producer("acks", "all")) {
            for (int number = begin; number < begin + count; number++) {
                Scenarios.send(producer, part.topic(), part.partition(), number, (offset, failed) -> { });
            }
        }
    }

    private static List<Long> committed(Admin admin, String group) throws Exception {
        return admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().values().stream()
            .filter(Objects::nonNull).map(OffsetAndMetadata::offset).toList();
    }
}
