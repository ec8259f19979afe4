import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.utils.Exit;

/** Apache Kafka's own command line tools, in this process: a Java machine for each would take longer than all of them. */
final class Tools {
    /** Where standard output goes; some tools keep the stream that they found first. */
    private static final class Switch extends OutputStream {
        private OutputStream to = System.err;
        private boolean muted;

        @Override
        public synchronized void write(int one) {
            write(new byte[] {(byte) one}, 0, 1);
        }

        @Override
        public synchronized void write(byte[] bytes, int from, int count) {
            try {
                if (!muted) {
                    to.write(bytes, from, count);
                }
            } catch (java.io.IOException failed) {
                throw new IllegalStateException(failed);
            }
        }

        synchronized void to(OutputStream next) {
            to = next;
            muted = false;
        }

        synchronized void mute() {
            muted = true;
        }
    }

    /** A tool that ends its process. */
    private static final class Ended extends RuntimeException {
        Ended() {
            super("the process ends", null, false, false);
        }
    }

    private static final Switch OUTPUT = new Switch();
    private static final List<Runnable> HOOKS = new ArrayList<>();
    /** What the tool at work ends with; the first time counts, since some take their own end for a failure. */
    private static Integer ending;
    private final Run run;

    Tools(Run run) {
        this.run = run;
    }

    /** Before anything else: nobody but this program writes to the real standard output. */
    static void takeOutput() {
        System.setOut(new PrintStream(OUTPUT, true));
        Exit.setExitProcedure((code, message) -> {
            if (ending == null) {
                ending = code;
                OUTPUT.mute();
            }
            throw new Ended();
        });
        Exit.setShutdownHookAdder((name, hook) -> HOOKS.add(hook));
    }

    /** Runs a tool as from a shell and tells its code and what it wrote. */
    private void tool(String step, String main, InputStream input, String... arguments) throws Exception {
        ByteArrayOutputStream written = new ByteArrayOutputStream();
        InputStream own = System.in;
        PrintStream errors = System.err;
        ending = null;
        OUTPUT.to(written);
        System.setIn(input);
        System.setErr(System.out);
        try {
            Class.forName(main).getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (java.lang.reflect.InvocationTargetException failed) {
            if (ending == null) {
                failed.getCause().printStackTrace();
                ending = 1;
            }
        } finally {
            int code = ending == null ? 0 : ending;
            // What the end of its process would do.
            OUTPUT.to(written);
            List.copyOf(HOOKS).forEach(Runnable::run);
            HOOKS.clear();
            OUTPUT.to(errors);
            System.setIn(own);
            System.setErr(errors);
            run.tell(step, "code", code, "output", written.toString(StandardCharsets.UTF_8));
        }
    }

    private void tool(String step, String main, String... arguments) throws Exception {
        String[] all = Stream.concat(Stream.of("--bootstrap-server", run.bootstrap()), Arrays.stream(arguments)).toArray(String[]::new);
        tool(step, main, InputStream.nullInputStream(), all);
    }

    /** A tool in a process of its own. */
    private void process(String step, String main, String... arguments) throws Exception {
        List<String> command = new ArrayList<>(List.of("java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"));
        command.addAll(List.of("-cp", System.getProperty("java.class.path"), main));
        command.addAll(List.of(arguments));
        Process process = new ProcessBuilder(command).redirectErrorStream(true).start();
        String output = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        run.tell(step, "code", process.waitFor(), "output", output);
    }

    void all() throws Exception {
        String topic = run.name("");
        String group = run.name("-group");
        String tools = "org.apache.kafka.tools.";
        String topics = tools + "TopicCommand";
        String configs = "kafka.admin.ConfigCommand";
        String groups = tools + "consumer.group.ConsumerGroupCommand";
        tool("topics-create", topics, "--create", "--topic", topic, "--partitions", "2", "--replication-factor", "1",
            "--config", "retention.ms=3600000", "--config", "local.retention.ms=3600000");
        tool("topics-list", topics, "--list");
        tool("topics-alter", topics, "--alter", "--topic", topic, "--partitions", "3");
        tool("topics-describe", topics, "--describe", "--topic", topic);
        tool("configs-alter", configs, "--alter", "--entity-type", "topics", "--entity-name", topic,
            "--add-config", "max.message.bytes=200000");
        tool("configs-describe", configs, "--describe", "--entity-type", "topics", "--entity-name", topic);
        tool("configs-broker", configs, "--describe", "--all", "--entity-type", "brokers", "--entity-name", broker());
        String lines = String.join("", IntStream.range(0, 30).mapToObj(number -> "k" + number + ":v" + number + "\n").toList());
        tool("console-producer", tools + "ConsoleProducer", new ByteArrayInputStream(lines.getBytes(StandardCharsets.UTF_8)),
            "--bootstrap-server", run.bootstrap(), "--topic", topic, "--reader-property", "parse.key=true",
            "--reader-property", "key.separator=:", "--compression-codec", "zstd");
        tool("console-consumer", tools + "consumer.ConsoleConsumer", "--topic", topic, "--group", group, "--from-beginning",
            "--max-messages", "30", "--timeout-ms", "30000", "--formatter-property", "print.key=true",
            "--formatter-property", "key.separator=:");
        tool("offsets-latest", tools + "GetOffsetShell", "--topic", topic, "--time", "latest");
        tool("offsets-earliest", tools + "GetOffsetShell", "--topic", topic, "--time", "earliest");
        tool("groups-list", groups, "--list");
        tool("groups-describe", groups, "--describe", "--group", group);
        tool("groups-state", groups, "--describe", "--state", "--group", group);
        tool("groups-reset", groups, "--reset-offsets", "--to-earliest", "--group", group, "--topic", topic, "--execute");
        tool("groups-delete-offsets", groups, "--delete-offsets", "--group", group, "--topic", topic);
        tool("groups-delete", groups, "--delete", "--group", group);
        tool("log-dirs", tools + "LogDirsCommand", "--describe", "--topic-list", topic);
        tool("producer-perf", tools + "ProducerPerformance", InputStream.nullInputStream(), "--topic", topic, "--num-records", "5000",
            "--record-size", "100", "--throughput", "-1", "--bootstrap-server", run.bootstrap());
        tool("consumer-perf", tools + "ConsumerPerformance", "--topic", topic, "--num-records", "5000", "--timeout", "30000",
            "--group", group + "-perf");
        dump("dump-log", topic, "--print-data-log");
        tool("topics-delete", topics, "--delete", "--topic", topic);
    }

    /** Kafka's own readers of its files, over those of a topic. */
    private void dump(String step, String topic, String reader) throws Exception {
        String files = String.join(",", Run.JSON.readValue(run.await("files", List.of(topic)), String[].class));
        tool(step, "org.apache.kafka.tools.DumpLogSegments", InputStream.nullInputStream(), "--files", files, reader);
    }

    /** What the tools tell of groups that have members, of the records of groups, and of the settings of groups and brokers. */
    void groups(Scenarios scenarios) throws Exception {
        String topic = run.name("");
        String configs = "kafka.admin.ConfigCommand";
        String groups = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand";
        scenarios.create(topic, Scenarios.GROUP_PARTITIONS);
        Map<Integer, Long> ends = produceUnevenly(scenarios, topic);
        for (String protocol : List.of("classic", "consumer")) {
            String group = run.name("-" + protocol);
            Map<String, Member> members = new LinkedHashMap<>();
            for (String name : List.of("first", "second")) {
                Properties options = scenarios.consumerOptions(group, protocol.equals("classic") ? "eager" : protocol);
                options.put("client.id", name);
                members.put(name, new Member(options, topic));
                members.get(name).start();
            }
            run.tell("members-" + protocol, "assignments", Scenarios.stable(members));
            Scenarios.until(() -> state(group) == GroupState.STABLE, group + " is stable");
            tool("describe-members-" + protocol, groups, "--describe", "--members", "--verbose", "--group", group);
            tool("describe-state-" + protocol, groups, "--describe", "--state", "--group", group);
            try (Admin admin = Admin.create(scenarios.options())) {
                Scenarios.until(() -> Groups.offsets(admin, group).equals(ends), group + " has committed the ends");
            }
            for (Member member : members.values()) {
                member.leave();
            }
        }
        dump("dump-offsets", "__consumer_offsets", "--offsets-decoder");
        setting(configs, "brokers", broker(), "log.retention.ms=7200000");
        setting(configs, "groups", run.name("-consumer"), "consumer.session.timeout.ms=50000");
    }

    /** One record into the first partition, two into the next, and so on: an end says of which partition it is. */
    private static Map<Integer, Long> produceUnevenly(Scenarios scenarios, String topic) {
        Map<Integer, Long> ends = new TreeMap<>();
        try (KafkaProducer<byte[], byte[]> producer = scenarios.producer("acks", "all")) {
            for (int partition = 0; partition < Scenarios.GROUP_PARTITIONS; partition++) {
                for (int number = 0; number <= partition; number++) {
                    Scenarios.send(producer, topic, partition, number, (offset, failed) -> { });
                }
                ends.put(partition, partition + 1L);
            }
        }
        return ends;
    }

    /** Alters one key and back. */
    private void setting(String configs, String type, String name, String entry) throws Exception {
        tool(type + "-alter", configs, "--alter", "--entity-type", type, "--entity-name", name, "--add-config", entry);
        tool(type + "-altered", configs, "--describe", "--entity-type", type, "--entity-name", name);
        tool(type + "-back", configs, "--alter", "--entity-type", type, "--entity-name", name,
            "--delete-config", entry.substring(0, entry.indexOf('=')));
        tool(type + "-all", configs, "--describe", "--all", "--entity-type", type, "--entity-name", name);
    }

    private GroupState state(String group) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", run.bootstrap()))) {
            return admin.describeConsumerGroups(List.of(group)).all().get().get(group).groupState();
        }
    }

    private String broker() throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", run.bootstrap()))) {
            return admin.describeCluster().nodes().get().iterator().next().idString();
        }
    }

    /** The pair that Kafka's system tests use, with each group protocol that is there. */
    void verifiable() throws Exception {
        String topic = run.name("");
        tool("topic", "org.apache.kafka.tools.TopicCommand", "--create", "--topic", topic, "--partitions", "2");
        // It closes its producer where its process ends, and by no call that could be made here.
        process("producer", "org.apache.kafka.tools.VerifiableProducer", "--bootstrap-server", run.bootstrap(), "--topic", topic,
            "--max-messages", "500", "--acks", "-1");
        for (String protocol : List.of("classic", "consumer")) {
            tool(protocol, "org.apache.kafka.tools.VerifiableConsumer", "--topic", topic, "--group-id", run.name("-" + protocol),
                "--group-protocol", protocol, "--max-messages", "500", "--reset-policy", "earliest");
        }
    }
}
