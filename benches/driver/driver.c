/*
 * The driver of the benches: produces and consumes through librdkafka, as fast as it can or at a fixed open-loop rate.
 *
 * It is compiled at bench time against a pinned librdkafka and prints one JSON object. Latency is measured from the time
 * at which a record should have been sent, so that a server that stalls cannot hide the records that waited for it
 * (coordinated omission).
 *
 *   driver version
 *   driver create  --brokers B --topic T --partitions N [--config KEY=VALUE]...
 *   driver delete  --brokers B --topic T
 *   driver produce (--brokers B | --mock) --topic T --partitions N --size BYTES --acks -1|0|1 [--batch BYTES]
 *                  [--linger MS] [--rate PER_SECOND] [--warmup SECONDS] (--messages N | --seconds S) [-X KEY=VALUE]...
 *   driver consume --brokers B --topic T --partitions N [--from OFFSET] [--messages N] [--seconds S] [-X KEY=VALUE]...
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "rdkafka.h"
#include "rdkafka_mock.h"

#define PARTITIONS_MAX 4096
#define SETTINGS_MAX 64
#define BATCH_MAX 10000

/* ------------------------------------------------------------------------------------------------ histogram */

/* Logarithmic buckets of 256 linear steps each: values keep better than 0.4 per cent, as HdrHistogram with three digits. */
#define STEPS 256
#define SCALES 56

struct histogram {
        uint64_t counts[SCALES][STEPS];
        uint64_t total;
        uint64_t max;
        double sum;
};

static void histogram_add(struct histogram *histogram, uint64_t value) {
        int scale = 0;
        uint64_t step = value;
        if (value >= STEPS) {
                scale = 63 - __builtin_clzll(value) - 7; /* step ends up in 128..255 */
                step = value >> scale;
        }
        histogram->counts[scale][step]++;
        histogram->total++;
        histogram->sum += (double)value;
        if (value > histogram->max)
                histogram->max = value;
}

/* The upper end of the step that holds the quantile. */
static uint64_t histogram_at(const struct histogram *histogram, double quantile) {
        uint64_t wanted = (uint64_t)(quantile * (double)histogram->total + 0.999999);
        uint64_t seen = 0;
        for (int scale = 0; scale < SCALES; scale++)
                for (int step = 0; step < STEPS; step++) {
                        seen += histogram->counts[scale][step];
                        if (seen >= wanted && seen > 0) {
                                uint64_t end = (((uint64_t)step + 1) << scale) - 1;
                                return end < histogram->max ? end : histogram->max;
                        }
                }
        return histogram->max;
}

/* ------------------------------------------------------------------------------------------------ options */

struct options {
        const char *mode;
        const char *brokers;
        const char *topic;
        int mock;
        int partitions;
        int acks;
        size_t size;
        long batch;
        double linger_ms;
        double rate;
        double warmup;
        double seconds;
        uint64_t messages;
        int64_t from;
        const char *configs[SETTINGS_MAX];
        int config_count;
        const char *settings[SETTINGS_MAX];
        int setting_count;
};

static void fail(const char *format, ...) {
        va_list arguments;
        va_start(arguments, format);
        fputs("driver: ", stderr);
        vfprintf(stderr, format, arguments);
        fputc('\n', stderr);
        va_end(arguments);
        exit(1);
}

static double number(const char *name, const char *text) {
        char *end;
        errno        = 0;
        double value = strtod(text, &end);
        if (errno != 0 || end == text || *end != '\0')
                fail("%s: `%s` is not a number", name, text);
        return value;
}

static struct options parse(int count, char **arguments) {
        struct options options = {
            .mode = count > 1 ? arguments[1] : "", .partitions = 1, .acks = 1, .size = 1024, .batch = 262144,
            .linger_ms = 5, .topic = "bench",
        };
        for (int at = 2; at < count; at++) {
                const char *name = arguments[at];
                if (!strcmp(name, "--mock")) {
                        options.mock = 1;
                        continue;
                }
                if (at + 1 >= count)
                        fail("%s needs a value", name);
                const char *value = arguments[++at];
                if (!strcmp(name, "--brokers"))
                        options.brokers = value;
                else if (!strcmp(name, "--topic"))
                        options.topic = value;
                else if (!strcmp(name, "--partitions"))
                        options.partitions = (int)number(name, value);
                else if (!strcmp(name, "--acks"))
                        options.acks = (int)number(name, value);
                else if (!strcmp(name, "--size"))
                        options.size = (size_t)number(name, value);
                else if (!strcmp(name, "--batch"))
                        options.batch = (long)number(name, value);
                else if (!strcmp(name, "--linger"))
                        options.linger_ms = number(name, value);
                else if (!strcmp(name, "--rate"))
                        options.rate = number(name, value);
                else if (!strcmp(name, "--warmup"))
                        options.warmup = number(name, value);
                else if (!strcmp(name, "--seconds"))
                        options.seconds = number(name, value);
                else if (!strcmp(name, "--messages"))
                        options.messages = (uint64_t)number(name, value);
                else if (!strcmp(name, "--from"))
                        options.from = (int64_t)number(name, value);
                else if (!strcmp(name, "--config") && options.config_count < SETTINGS_MAX)
                        options.configs[options.config_count++] = value;
                else if (!strcmp(name, "-X") && options.setting_count < SETTINGS_MAX)
                        options.settings[options.setting_count++] = value;
                else
                        fail("unknown option %s", name);
        }
        if (options.partitions < 1 || options.partitions > PARTITIONS_MAX)
                fail("--partitions takes 1 to %d", PARTITIONS_MAX);
        if (options.size < 1 || options.size > 16 * 1024 * 1024)
                fail("--size takes 1 to 16777216");
        return options;
}

/* ------------------------------------------------------------------------------------------------ librdkafka */

static uint64_t now_ns(void) {
        struct timespec time;
        clock_gettime(CLOCK_MONOTONIC, &time);
        return (uint64_t)time.tv_sec * 1000000000ull + (uint64_t)time.tv_nsec;
}

static double cpu_seconds(void) {
        struct rusage usage;
        getrusage(RUSAGE_SELF, &usage);
        return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
               (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void set(rd_kafka_conf_t *conf, const char *key, const char *format, ...) {
        char value[256], error[256];
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(value, sizeof value, format, arguments);
        va_end(arguments);
        if (rd_kafka_conf_set(conf, key, value, error, sizeof error) != RD_KAFKA_CONF_OK)
                fail("%s=%s: %s", key, value, error);
}

static void set_pairs(rd_kafka_conf_t *conf, const struct options *options) {
        for (int at = 0; at < options->setting_count; at++) {
                char pair[512];
                snprintf(pair, sizeof pair, "%s", options->settings[at]);
                char *sign = strchr(pair, '=');
                if (sign == NULL)
                        fail("-X %s is not KEY=VALUE", pair);
                *sign = '\0';
                set(conf, pair, "%s", sign + 1);
        }
}

static rd_kafka_conf_t *common(const struct options *options) {
        rd_kafka_conf_t *conf = rd_kafka_conf_new();
        if (options->brokers != NULL)
                set(conf, "bootstrap.servers", "%s", options->brokers);
        else if (!options->mock)
                fail("--brokers or --mock is needed");
        set(conf, "client.id", "tidelog-bench");
        set(conf, "log_level", "4");
        set(conf, "reconnect.backoff.ms", "20");
        set(conf, "reconnect.backoff.max.ms", "200");
        return conf;
}

static rd_kafka_t *start(rd_kafka_type_t type, rd_kafka_conf_t *conf) {
        char error[512];
        rd_kafka_t *client = rd_kafka_new(type, conf, error, sizeof error);
        if (client == NULL)
                fail("%s", error);
        return client;
}

/* Connects and learns the topic, so that the measured time begins with a working client. */
static void learn(rd_kafka_t *client, rd_kafka_topic_t *topic, int partitions) {
        uint64_t deadline = now_ns() + 60000000000ull;
        for (;;) {
                const struct rd_kafka_metadata *metadata = NULL;
                rd_kafka_resp_err_t error = rd_kafka_metadata(client, 0, topic, &metadata, 10000);
                int ready = 0;
                if (error == RD_KAFKA_RESP_ERR_NO_ERROR) {
                        ready = metadata->topic_cnt == 1 && metadata->topics[0].partition_cnt >= partitions;
                        for (int at = 0; ready && at < metadata->topics[0].partition_cnt; at++)
                                ready = metadata->topics[0].partitions[at].leader >= 0;
                        rd_kafka_metadata_destroy(metadata);
                }
                if (ready)
                        return;
                if (now_ns() > deadline)
                        fail("the topic has no %d partitions with leaders: %s", partitions, rd_kafka_err2str(error));
                nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        }
}

/* ------------------------------------------------------------------------------------------------ topics */

static int administer(const struct options *options) {
        rd_kafka_t *client = start(RD_KAFKA_PRODUCER, common(options));
        rd_kafka_queue_t *queue = rd_kafka_queue_new(client);
        int is_create = !strcmp(options->mode, "create");
        char text[512] = "";
        rd_kafka_AdminOptions_t *admin = rd_kafka_AdminOptions_new(client, RD_KAFKA_ADMIN_OP_ANY);
        rd_kafka_AdminOptions_set_request_timeout(admin, 120000, text, sizeof text);
        if (is_create) {
                rd_kafka_NewTopic_t *topic =
                    rd_kafka_NewTopic_new(options->topic, options->partitions, 1, text, sizeof text);
                if (topic == NULL)
                        fail("%s", text);
                for (int at = 0; at < options->config_count; at++) {
                        char pair[512];
                        snprintf(pair, sizeof pair, "%s", options->configs[at]);
                        char *sign = strchr(pair, '=');
                        if (sign == NULL)
                                fail("--config %s is not KEY=VALUE", pair);
                        *sign = '\0';
                        rd_kafka_NewTopic_set_config(topic, pair, sign + 1);
                }
                rd_kafka_CreateTopics(client, &topic, 1, admin, queue);
        } else {
                rd_kafka_DeleteTopic_t *topic = rd_kafka_DeleteTopic_new(options->topic);
                rd_kafka_DeleteTopics(client, &topic, 1, admin, queue);
        }
        rd_kafka_event_t *event = rd_kafka_queue_poll(queue, 130000);
        if (event == NULL)
                fail("no answer");
        if (rd_kafka_event_error(event))
                fail("%s", rd_kafka_event_error_string(event));
        size_t count = 0;
        const rd_kafka_topic_result_t **results;
        if (is_create)
                results = rd_kafka_CreateTopics_result_topics(rd_kafka_event_CreateTopics_result(event), &count);
        else
                results = rd_kafka_DeleteTopics_result_topics(rd_kafka_event_DeleteTopics_result(event), &count);
        for (size_t at = 0; at < count; at++)
                if (rd_kafka_topic_result_error(results[at]))
                        fail("%s: %s", rd_kafka_topic_result_name(results[at]),
                             rd_kafka_topic_result_error_string(results[at]));
        rd_kafka_event_destroy(event);
        printf("{\"topic\":\"%s\",\"done\":true}\n", options->topic);
        fflush(stdout);
        _Exit(0); /* Nothing is left to be sent; the orderly end of a client takes a second. */
}

/* ------------------------------------------------------------------------------------------------ produce */

struct producing {
        rd_kafka_t *client;
        struct histogram *latency;
        uint64_t measured_from;
        uint64_t acknowledged;
        uint64_t failed;
        uint64_t last_ack;
        rd_kafka_resp_err_t first_error;
        atomic_int stop;
};

static void delivered(rd_kafka_t *client, const rd_kafka_message_t *message, void *opaque) {
        (void)client;
        struct producing *producing = opaque;
        if (message->err != RD_KAFKA_RESP_ERR_NO_ERROR) {
                if (producing->failed++ == 0)
                        producing->first_error = message->err;
                return;
        }
        producing->acknowledged++;
        if (producing->latency == NULL)
                return;
        uint64_t intended = (uint64_t)(uintptr_t)message->_private;
        uint64_t now      = now_ns();
        if (intended >= producing->measured_from)
                histogram_add(producing->latency, now > intended ? now - intended : 0);
}

static void *serve(void *opaque) {
        struct producing *producing = opaque;
        while (!atomic_load(&producing->stop))
                if (rd_kafka_poll(producing->client, 10) > 0)
                        producing->last_ack = now_ns();
        return NULL;
}

static void print_latency(const struct histogram *latency) {
        double us = 1000.0;
        printf(",\"latency_us\":{\"count\":%" PRIu64 ",\"mean\":%.1f,\"p50\":%.1f,\"p90\":%.1f,\"p99\":%.1f,\"p999\":%.1f,"
               "\"p9999\":%.1f,\"max\":%.1f}",
               latency->total, latency->total ? latency->sum / (double)latency->total / us : 0.0,
               (double)histogram_at(latency, 0.5) / us, (double)histogram_at(latency, 0.9) / us,
               (double)histogram_at(latency, 0.99) / us, (double)histogram_at(latency, 0.999) / us,
               (double)histogram_at(latency, 0.9999) / us, (double)latency->max / us);
}

static char *payloads(size_t bytes) {
        char *pool = malloc(bytes);
        if (pool == NULL)
                fail("no memory for the payloads");
        uint64_t state = 0x9e3779b97f4a7c15ull; /* a fixed seed: every run sends the same bytes */
        for (size_t at = 0; at < bytes; at++) {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                pool[at] = (char)state;
        }
        return pool;
}

static int produce(const struct options *options) {
        struct producing producing = {0};
        rd_kafka_conf_t *conf      = common(options);
        long request_bytes         = options->batch + 65536;
        if (options->mock)
                set(conf, "test.mock.num.brokers", "1");
        set(conf, "acks", "%d", options->acks);
        set(conf, "batch.size", "%ld", options->batch);
        set(conf, "batch.num.messages", "1000000");
        set(conf, "linger.ms", "%g", options->linger_ms);
        set(conf, "message.max.bytes", "%ld", request_bytes > 1000000 ? request_bytes : 1000000);
        set(conf, "queue.buffering.max.messages", "1000000");
        set(conf, "queue.buffering.max.kbytes", "262144");
        set(conf, "message.timeout.ms", "300000");
        set(conf, "compression.type", "none");
        set_pairs(conf, options);
        rd_kafka_conf_set_dr_msg_cb(conf, delivered);
        rd_kafka_conf_set_opaque(conf, &producing);
        rd_kafka_t *client      = start(RD_KAFKA_PRODUCER, conf);
        rd_kafka_topic_t *topic = rd_kafka_topic_new(client, options->topic, NULL);
        if (options->mock) {
                rd_kafka_mock_cluster_t *mock = rd_kafka_handle_mock_cluster(client);
                rd_kafka_mock_topic_create(mock, options->topic, options->partitions, 1);
        }
        learn(client, topic, options->partitions);

        producing.client = client;
        if (options->rate > 0)
                producing.latency = calloc(1, sizeof *producing.latency);
        pthread_t server;
        if (pthread_create(&server, NULL, serve, &producing) != 0)
                fail("no thread");

        /* A partition is filled batch by batch, as a sticky partitioner does it. */
        uint64_t stride = (uint64_t)options->batch / (options->size + 16);
        if (stride == 0)
                stride = 1;
        size_t pool_bytes    = options->size + 64 * 1024;
        char *pool           = payloads(pool_bytes);
        double cpu           = cpu_seconds();
        uint64_t begin       = now_ns();
        uint64_t end         = options->seconds > 0 ? begin + (uint64_t)(options->seconds * 1e9) : UINT64_MAX;
        uint64_t limit       = options->messages > 0 ? options->messages : UINT64_MAX;
        uint64_t sent        = 0, stuck = 0, late_max = 0;
        int32_t partition    = 0;
        uint64_t in_stride   = 0;
        producing.measured_from = begin + (uint64_t)(options->warmup * 1e9);
        if (end == UINT64_MAX && limit == UINT64_MAX)
                fail("--messages or --seconds is needed");

        while (sent < limit) {
                uint64_t intended = 0;
                if (options->rate > 0) {
                        intended     = begin + (uint64_t)((double)sent * 1e9 / options->rate);
                        if (intended >= end)
                                break;
                        uint64_t now = now_ns();
                        while (intended > now) {
                                uint64_t wait = intended - now;
                                nanosleep(&(struct timespec){.tv_nsec = (long)(wait < 200000 ? wait : 200000)}, NULL);
                                now = now_ns();
                        }
                        if (now - intended > late_max)
                                late_max = now - intended;
                } else if ((sent & 255) == 0 && now_ns() >= end)
                        break;
                size_t at = (size_t)((sent * 64) % (64 * 1024));
                if (rd_kafka_produce(topic, partition, 0, pool + at, options->size, NULL, 0,
                                     (void *)(uintptr_t)intended) != 0) {
                        if (rd_kafka_last_error() != RD_KAFKA_RESP_ERR__QUEUE_FULL)
                                fail("produce: %s", rd_kafka_err2str(rd_kafka_last_error()));
                        stuck++;
                        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
                        continue;
                }
                sent++;
                if (++in_stride >= stride) {
                        in_stride = 0;
                        partition = (partition + 1) % options->partitions;
                }
        }
        uint64_t queued = now_ns();
        while (rd_kafka_outq_len(client) > 0 && now_ns() - queued < 300000000000ull)
                nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
        atomic_store(&producing.stop, 1);
        pthread_join(server, NULL);
        uint64_t last    = producing.last_ack > begin ? producing.last_ack : now_ns();
        double elapsed   = (double)(last - begin) / 1e9;
        double bytes     = (double)producing.acknowledged * (double)options->size;
        printf("{\"mode\":\"produce\",\"librdkafka\":\"%s\",\"messages\":%" PRIu64 ",\"bytes\":%.0f,\"failed\":%" PRIu64
               ",\"seconds\":%.6f,\"mb_per_s\":%.3f,\"messages_per_s\":%.1f,\"rate\":%.1f,\"queue_full\":%" PRIu64
               ",\"send_late_max_us\":%.1f,\"driver_cpu_s\":%.3f",
               rd_kafka_version_str(), producing.acknowledged, bytes, producing.failed, elapsed, bytes / elapsed / 1e6,
               (double)producing.acknowledged / elapsed, options->rate, stuck, (double)late_max / 1e3,
               cpu_seconds() - cpu);
        if (producing.latency != NULL)
                print_latency(producing.latency);
        if (producing.failed > 0)
                printf(",\"error\":\"%s\"", rd_kafka_err2name(producing.first_error));
        printf("}\n");
        fflush(stdout);
        _Exit(producing.failed > 0 ? 1 : 0);
}

/* ------------------------------------------------------------------------------------------------ consume */

static int consume(const struct options *options) {
        static int64_t next[PARTITIONS_MAX];
        static char ended[PARTITIONS_MAX];
        rd_kafka_conf_t *conf = common(options);
        set(conf, "enable.partition.eof", "true");
        set(conf, "fetch.wait.max.ms", "100");
        /* Answers of tens of megabytes cost the driver twice the CPU: their memory is mapped anew each time. */
        set(conf, "fetch.message.max.bytes", "2097152");
        set(conf, "fetch.max.bytes", "16777216");
        set(conf, "receive.message.max.bytes", "100000000");
        set(conf, "queued.max.messages.kbytes", "131072");
        set(conf, "queued.min.messages", "1000000");
        set(conf, "fetch.queue.backoff.ms", "1"); /* by default a full queue pauses for a second */
        set(conf, "fetch.error.backoff.ms", "20");
        set_pairs(conf, options);
        rd_kafka_t *client      = start(RD_KAFKA_CONSUMER, conf);
        rd_kafka_topic_t *topic = rd_kafka_topic_new(client, options->topic, NULL);
        rd_kafka_queue_t *queue = rd_kafka_queue_new(client);
        learn(client, topic, options->partitions);
        double cpu     = cpu_seconds();
        uint64_t begin = now_ns(), first = 0, last = 0;
        uint64_t end   = options->seconds > 0 ? begin + (uint64_t)(options->seconds * 1e9) : UINT64_MAX;
        uint64_t limit = options->messages > 0 ? options->messages : UINT64_MAX;
        uint64_t messages = 0, gaps = 0, errors = 0;
        double bytes = 0;
        int open = options->partitions;
        for (int32_t partition = 0; partition < options->partitions; partition++) {
                next[partition] = options->from;
                if (rd_kafka_consume_start_queue(topic, partition, options->from, queue) != 0)
                        fail("consume: %s", rd_kafka_err2str(rd_kafka_last_error()));
        }
        static rd_kafka_message_t *batch[BATCH_MAX];
        while (open > 0 && messages < limit && now_ns() < end) {
                ssize_t count = rd_kafka_consume_batch_queue(queue, 100, batch, BATCH_MAX);
                for (ssize_t at = 0; at < count; at++) {
                        rd_kafka_message_t *message = batch[at];
                        int32_t partition           = message->partition;
                        if (message->err == RD_KAFKA_RESP_ERR_NO_ERROR) {
                                if (message->offset != next[partition])
                                        gaps++;
                                next[partition] = message->offset + 1;
                                bytes += (double)message->len;
                                messages++;
                        } else if (message->err == RD_KAFKA_RESP_ERR__PARTITION_EOF) {
                                if (!ended[partition]) {
                                        ended[partition] = 1;
                                        open--;
                                }
                        } else
                                errors++;
                        rd_kafka_message_destroy(message);
                }
                if (count > 0 && messages > 0) {
                        last = now_ns();
                        if (first == 0)
                                first = last;
                }
        }
        double elapsed = last > begin ? (double)(last - begin) / 1e9 : 0;
        printf("{\"mode\":\"consume\",\"librdkafka\":\"%s\",\"messages\":%" PRIu64 ",\"bytes\":%.0f,\"gaps\":%" PRIu64
               ",\"errors\":%" PRIu64 ",\"ended\":%d,\"seconds\":%.6f,\"mb_per_s\":%.3f,\"messages_per_s\":%.1f,"
               "\"first_ms\":%.3f,\"driver_cpu_s\":%.3f}\n",
               rd_kafka_version_str(), messages, bytes, gaps, errors, options->partitions - open, elapsed,
               elapsed > 0 ? bytes / elapsed / 1e6 : 0.0, elapsed > 0 ? (double)messages / elapsed : 0.0,
               first > 0 ? (double)(first - begin) / 1e6 : -1.0, cpu_seconds() - cpu);
        fflush(stdout);
        _Exit(0);
}

int main(int count, char **arguments) {
        signal(SIGPIPE, SIG_IGN);
        struct options options = parse(count, arguments);
        if (!strcmp(options.mode, "version")) {
                printf("{\"librdkafka\":\"%s\"}\n", rd_kafka_version_str());
                return 0;
        }
        if (!strcmp(options.mode, "create") || !strcmp(options.mode, "delete"))
                return administer(&options);
        if (!strcmp(options.mode, "produce"))
                return produce(&options);
        if (!strcmp(options.mode, "consume"))
                return consume(&options);
        fail("use version, create, delete, produce or consume");
        return 1;
}
