import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
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
    private final Thread thread = new Thread(this, "member");
    private final Properties options;
    private final String topic;
    private volatile boolean over;
    private volatile Exception error;
    private long firstAssigned;

    Member(Properties options, String topic) {
        this.options = options;
        this.topic = topic;
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

    void check() throws Exception {
        if (error != null) {
            throw error;
        }
    }

    @Override
    public void run() {
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(options)) {
            consumer.subscribe(List.of(topic), this);
            while (!over) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
                    record(record);
                }
                consumer.commitAsync();
            }
        } catch (Exception failed) {
            error = failed;
        }
    }

    private synchronized void record(ConsumerRecord<byte[], byte[]> record) {
        seen.add(Integer.parseInt(new String(record.value())));
        times.add(new long[] {System.nanoTime(), record.partition()});
    }

    @Override
    public synchronized void onPartitionsAssigned(Collection<TopicPartition> partitions) {
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
        partitions.forEach(part -> owned.remove(part.partition()));
        partitions.forEach(part -> to.add(part.partition()));
    }

    synchronized List<Integer> partitions() {
        return List.copyOf(owned);
    }

    synchronized boolean hasRecords() {
        return !times.isEmpty();
    }

    synchronized boolean hasSeen(int number) {
        return seen.contains(number);
    }

    synchronized long firstAssigned() {
        return firstAssigned;
    }

    /** Records of partitions that came between two moments. */
    synchronized long between(Collection<Integer> partitions, long begin, long end) {
        return times.stream().filter(at -> at[0] > begin && at[0] < end && partitions.contains((int) at[1])).count();
    }
}
