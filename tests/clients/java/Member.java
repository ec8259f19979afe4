import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;

/** A member of a group, with a thread of its own. */
final class Member implements ConsumerRebalanceListener, Runnable {
    final Set<Integer> owned = new TreeSet<>();
    final Set<Integer> revoked = new TreeSet<>();
    final Set<Integer> lost = new TreeSet<>();
    final Set<Integer> seen = new TreeSet<>();
    private final List<long[]> times = new ArrayList<>();
    private int changes;
    private volatile int generation;
    private final Thread thread = new Thread(this, "member");
    private final Properties options;
    private final String topic;
    private final Duration closing;
    private volatile boolean over;
    private volatile Exception error;
    private long firstAssigned;

    Member(Properties options, String topic) {
        this.options = options;
        this.topic = topic;
        // A static member leaves without a word, but would first wait for what its join is answered.
        this.closing = Duration.ofMillis(options.containsKey("group.instance.id") ? 100 : 30_000);
        thread.setDaemon(true);
    }

    void start() {
        thread.start();
    }

    void leave() throws Exception {
        over = true;
        thread.join();
        check();
    }

    /** What it ends with by itself. */
    String fate() throws Exception {
        thread.join(30_000);
        return thread.isAlive() ? "alive" : error == null ? "none" : error.getClass().getSimpleName();
    }

    void check() throws Exception {
        if (error != null) {
            throw error;
        }
    }

    @Override
    public void run() {
        KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(options);
        try {
            consumer.subscribe(List.of(topic), this);
            while (!over) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
                    record(record);
                }
                generation = consumer.groupMetadata().generationId();
                consumer.commitAsync();
            }
        } catch (Exception failed) {
            error = failed;
        } finally {
            consumer.close(CloseOptions.timeout(closing));
        }
    }

    private synchronized void record(ConsumerRecord<byte[], byte[]> record) {
        int number = Integer.parseInt(new String(record.value()));
        seen.add(number);
        times.add(new long[] {System.nanoTime(), record.partition(), number});
    }

    @Override
    public synchronized void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        changes++;
        partitions.forEach(part -> owned.add(part.partition()));
        if (!partitions.isEmpty() && firstAssigned == 0) {
            firstAssigned = System.nanoTime();
        }
    }

    @Override
    public synchronized void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        taken(partitions, revoked);
    }

    @Override
    public synchronized void onPartitionsLost(Collection<TopicPartition> partitions) {
        taken(partitions, lost);
    }

    private void taken(Collection<TopicPartition> partitions, Set<Integer> to) {
        changes++;
        partitions.forEach(part -> owned.remove(part.partition()));
        partitions.forEach(part -> to.add(part.partition()));
    }

    synchronized List<Integer> partitions() {
        return List.copyOf(owned);
    }

    synchronized boolean hasSeen(int number) {
        return seen.contains(number);
    }

    /** What came from this number on, in its order. */
    synchronized List<Long> numbers(int from) {
        return times.stream().map(at -> at[2]).filter(number -> number >= from).toList();
    }

    /** How often anything was said of its assignment. */
    synchronized int changes() {
        return changes;
    }

    int generation() {
        return generation;
    }

    synchronized long firstAssigned() {
        return firstAssigned;
    }

    /** Records of partitions that came between two moments. */
    synchronized long between(Collection<Integer> partitions, long begin, long end) {
        return times.stream().filter(at -> at[0] > begin && at[0] < end && partitions.contains((int) at[1])).count();
    }
}
