// The scenarios with franz-go.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"tidelog.invalid/clients/scenario"
)

// Between two looks at what changed.
const metadataAge = 200 * time.Millisecond

var background = context.Background()

var codecs = map[string]kgo.CompressionCodec{
	"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
	"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
}

type client struct {
	bootstrap string
	*kgo.Client
	admin *kadm.Client
}

func open(bootstrap string) (scenario.Client, error) {
	made, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.MetadataMinAge(metadataAge))
	if err != nil {
		return nil, err
	}
	return &client{bootstrap, made, kadm.NewClient(made)}, nil
}

func (client *client) with(options ...kgo.Opt) (*kgo.Client, error) {
	log := kgo.BasicLogger(os.Stderr, kgo.LogLevelWarn, nil)
	return kgo.NewClient(append(options, kgo.SeedBrokers(client.bootstrap), kgo.MetadataMinAge(metadataAge), kgo.WithLogger(log))...)
}

func (client *client) Create(topic string, partitions int32, configs map[string]string) error {
	_, err := client.admin.CreateTopic(background, partitions, 1, scenario.Pointers(configs), topic)
	return err
}

func (client *client) Delete(topic string) error {
	_, err := client.admin.DeleteTopic(background, topic)
	return err
}

func (client *client) Administration(run *scenario.Run) error {
	topic, admin := run.Name(""), client.admin
	configs := scenario.Pointers(scenario.Configs)
	create := func() error {
		_, err := admin.CreateTopic(background, 2, 1, configs, topic)
		return err
	}
	if err := create(); err != nil {
		return err
	}
	run.Tell("created", scenario.Facts{"error": create().Error()})
	listed := func() bool {
		topics, err := admin.ListTopics(background)
		return err == nil && topics.Has(topic)
	}
	run.Tell("listed", scenario.Facts{"found": listed()})
	partitions := func() []int32 {
		topics, err := admin.ListTopics(background, topic)
		if err != nil {
			return nil
		}
		return topics[topic].Partitions.Numbers()
	}
	topics, err := admin.ListTopics(background, topic)
	if err != nil {
		return err
	}
	replicas := []int{}
	for _, part := range topics[topic].Partitions.Sorted() {
		replicas = append(replicas, len(part.Replicas))
	}
	run.Tell("described", scenario.Facts{"partitions": partitions(), "replicas": replicas})
	described := func() scenario.Facts {
		found := scenario.Facts{}
		resources, err := admin.DescribeTopicConfigs(background, topic)
		if err != nil {
			return found
		}
		for _, config := range resources[0].Configs {
			found[config.Key] = config.MaybeValue()
		}
		return found
	}
	run.Tell("configs", described())
	value := "7200000"
	changes := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: &value}}
	if answers, err := admin.AlterTopicConfigs(background, changes, topic); err != nil || answers[0].Err != nil {
		return fmt.Errorf("alter: %v %v", err, answers)
	}
	altered := func() bool { return described()["retention.ms"] == value }
	if err := scenario.Until(func() string { return "the altered value" }, altered); err != nil {
		return err
	}
	run.Tell("altered", described())
	if answers, err := admin.UpdatePartitions(background, 5, topic); err != nil || answers.Error() != nil {
		return fmt.Errorf("partitions: %v %v", err, answers)
	}
	grown := func() bool { return len(partitions()) == 5 }
	if err := scenario.Until(func() string { return "five partitions" }, grown); err != nil {
		return err
	}
	run.Tell("grown", scenario.Facts{"partitions": partitions()})
	if _, err := admin.DeleteTopic(background, topic); err != nil {
		return err
	}
	if err := scenario.Until(func() string { return "the topic is gone" }, func() bool { return !listed() }); err != nil {
		return err
	}
	if _, err = admin.DeleteTopic(background, topic); err == nil {
		return fmt.Errorf("a topic is deleted twice")
	}
	run.Tell("deleted", scenario.Facts{"error": err.Error()})
	return nil
}

func (client *client) Cluster() (scenario.Facts, error) {
	told, err := client.admin.BrokerMetadata(background)
	brokers := [][]any{}
	for _, broker := range told.Brokers {
		brokers = append(brokers, []any{broker.NodeID, net.JoinHostPort(broker.Host, strconv.Itoa(int(broker.Port)))})
	}
	return scenario.Facts{"brokers": brokers, "controller": told.Controller, "id": told.Cluster}, err
}

func (client *client) BrokerConfigs() (map[string]string, error) {
	found := map[string]string{}
	resources, err := client.admin.DescribeBrokerConfigs(background, 1)
	if err != nil {
		return nil, err
	}
	for _, config := range resources[0].Configs {
		if slices.Contains(scenario.BrokerKeys, config.Key) {
			found[config.Key] = config.MaybeValue()
		}
	}
	return found, resources[0].Err
}

func (client *client) AlterBroker(key string, value *string) error {
	change := kadm.AlterConfig{Op: kadm.SetConfig, Name: key, Value: value}
	if value == nil {
		change.Op = kadm.DeleteConfig
	}
	answers, err := client.admin.AlterBrokerConfigs(background, []kadm.AlterConfig{change}, 1)
	if err != nil {
		return err
	}
	return answers[0].Err
}

func (client *client) Offsets(topic string) (map[string]int64, error) {
	after := func(offset int64) func(context.Context, ...string) (kadm.ListedOffsets, error) {
		return func(limit context.Context, topics ...string) (kadm.ListedOffsets, error) {
			return client.admin.ListOffsetsAfterMilli(limit, scenario.TimesBegin+offset, topics...)
		}
	}
	found := map[string]int64{}
	for name, list := range map[string]func(context.Context, ...string) (kadm.ListedOffsets, error){
		"earliest": client.admin.ListStartOffsets, "latest": client.admin.ListEndOffsets,
		"newest": client.admin.ListMaxTimestampOffsets,
		"at":     after(7), "later": after(scenario.AdministrationRecords),
	} {
		offsets, err := list(background, topic)
		if err == nil {
			err = offsets.Error()
		}
		if err != nil {
			return nil, err
		}
		found[name] = offsets[topic][0].Offset
	}
	return found, nil
}

func (client *client) DeleteRecords(topic string, partition int32, offset int64) (scenario.Facts, error) {
	asked := kadm.Offsets{}
	asked.AddOffset(topic, partition, offset, -1)
	answers, err := client.admin.DeleteRecords(background, asked)
	if err == nil {
		err = answers.Error()
	}
	if err != nil {
		return nil, err
	}
	return scenario.Facts{"low": answers[topic][partition].LowWatermark}, nil
}

func (client *client) Looks() []scenario.Look {
	return []scenario.Look{
		{Step: "log-dirs", Ask: client.logDirs}, {Step: "elected", Ask: client.elected},
		{Step: "reassignments", Ask: client.reassignments}, {Step: "producers", Ask: client.producers},
		{Step: "features", Ask: client.features}, {Step: "resources", Ask: client.resources},
	}
}

func only(topic string, partitions ...int32) kadm.TopicsSet {
	set := kadm.TopicsSet{}
	set.Add(topic, partitions...)
	return set
}

func (client *client) logDirs(topic string) (scenario.Facts, error) {
	folders, err := client.admin.DescribeBrokerLogDirs(background, 1, only(topic, 0, 1))
	if err != nil {
		return nil, err
	}
	partitions := [][]any{}
	var broker int32
	for _, folder := range folders {
		if folder.Err != nil {
			return nil, folder.Err
		}
		broker = folder.Broker
		for _, part := range folder.Topics.Sorted() {
			partitions = append(partitions, []any{part.Partition, part.Size, part.OffsetLag, part.IsFuture})
		}
	}
	slices.SortFunc(partitions, func(a, b []any) int { return int(a[0].(int32) - b[0].(int32)) })
	return scenario.Facts{"broker": broker, "partitions": partitions}, nil
}

func (client *client) elected(topic string) (scenario.Facts, error) {
	answers, err := client.admin.ElectLeaders(background, kadm.ElectPreferredReplica, only(topic, 0))
	if err != nil {
		return nil, err
	}
	return scenario.Facts{"error": client.ErrorName(answers[topic][0].Err)}, nil
}

func (client *client) reassignments(topic string) (scenario.Facts, error) {
	answers, err := client.admin.ListPartitionReassignments(background, only(topic, 0, 1))
	ongoing := []int32{}
	answers.Each(func(answer kadm.ListPartitionReassignmentsResponse) { ongoing = append(ongoing, answer.Partition) })
	return scenario.Facts{"ongoing": ongoing}, err
}

func (client *client) producers(topic string) (scenario.Facts, error) {
	answers, err := client.admin.DescribeProducers(background, only(topic, 0))
	if err != nil {
		return nil, err
	}
	found := [][]any{}
	for _, producer := range answers[topic].Partitions[0].ActiveProducers.Sorted() {
		found = append(found, []any{producer.ProducerEpoch, producer.LastSequence})
	}
	return scenario.Facts{"producers": found}, answers[topic].Partitions[0].Err
}

func (client *client) features(string) (scenario.Facts, error) {
	answers, err := client.admin.ApiVersions(background)
	if err != nil {
		return nil, err
	}
	told, finalized := answers[1], []string{}
	for _, feature := range told.Raw().FinalizedFeatures {
		finalized = append(finalized, feature.Name)
	}
	slices.Sort(finalized)
	return scenario.Facts{"finalized": finalized}, told.Err
}

func (client *client) resources(topic string) (scenario.Facts, error) {
	found, err := client.admin.ListConfigResources(background, kadm.ConfigResourceTopic, kadm.ConfigResourceClientMetrics)
	named := func(told kadm.ConfigResource) bool { return told.Name == topic }
	return scenario.Facts{
		"topic":   slices.ContainsFunc(found.FilterTypes(kadm.ConfigResourceTopic), named),
		"metrics": len(found.FilterTypes(kadm.ConfigResourceClientMetrics)),
	}, errors.Join(err, found.Err)
}

func (client *client) Described(topic, group string) (scenario.Facts, error) {
	answers, err := client.admin.DescribeGroups(background, group)
	if err != nil {
		return nil, err
	}
	told := answers[group]
	members := [][]int32{}
	for _, member := range told.Members {
		assigned, _ := member.Assigned.AsConsumer()
		for _, owned := range assigned.Topics {
			slices.Sort(owned.Partitions)
			members = append(members, owned.Partitions)
		}
	}
	return scenario.Facts{"state": told.State, "assignor": told.Protocol, "members": members}, told.Err
}

func (client *client) Listed(group string) (scenario.Facts, error) {
	answers, err := client.admin.ListGroups(background)
	groups := [][]string{}
	if told, found := answers[group]; found {
		groups = append(groups, []string{told.State, told.GroupType})
	}
	return scenario.Facts{"groups": groups}, err
}

func (client *client) Hold(topic, group, instance string) (func() error, error) {
	consumer, err := client.member(topic, group, "eager", kgo.InstanceID(instance), kgo.DisableAutoCommit())
	if err != nil {
		return nil, err
	}
	for count := 0; count < scenario.AdministrationRecords; {
		records, err := poll(consumer, 30*time.Second, scenario.AdministrationRecords)
		if err != nil || len(records) == 0 {
			return nil, fmt.Errorf("%d came: %v", count, err)
		}
		count += len(records)
	}
	leave := func() error {
		consumer.CloseAllowingRebalance()
		return nil
	}
	return leave, consumer.CommitUncommittedOffsets(background)
}

func (client *client) RemoveMember(group, instance string) error {
	answers, err := client.admin.LeaveGroup(background, kadm.LeaveGroup(group).InstanceIDs(instance))
	if err != nil {
		return err
	}
	return answers.Error()
}

func (client *client) AlterOffset(topic, group string, partition int32, offset int64) error {
	offsets := kadm.Offsets{}
	offsets.AddOffset(topic, partition, offset, -1)
	return client.admin.CommitAllOffsets(background, group, offsets)
}

func (client *client) DeleteOffset(topic, group string, partition int32) error {
	answers, err := client.admin.DeleteOffsets(background, group, only(topic, partition))
	if err != nil {
		return err
	}
	return answers.Error()
}

func (client *client) DeleteGroup(group string) error {
	_, err := client.admin.DeleteGroup(background, group)
	return err
}

func (client *client) ErrorName(err error) string {
	var told *kerr.Error
	if errors.As(err, &told) {
		return told.Message
	}
	return fmt.Sprint(err)
}

func (client *client) Produce(topic, codec string, records []scenario.Record) ([]int64, error) {
	producer, err := client.with(
		kgo.ProducerBatchCompression(codecs[codec]), kgo.ProducerLinger(20*time.Millisecond), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return nil, err
	}
	defer producer.Close()
	sent := []*kgo.Record{}
	for _, record := range records {
		headers := []kgo.RecordHeader{}
		for _, header := range record.Headers {
			headers = append(headers, kgo.RecordHeader{Key: *header[0], Value: scenario.Bytes(header[1])})
		}
		sent = append(sent, &kgo.Record{
			Topic: topic, Key: scenario.Bytes(record.Key), Value: scenario.Bytes(record.Value),
			Headers: headers, Timestamp: time.UnixMilli(record.Timestamp),
		})
	}
	offsets := []int64{}
	for _, result := range producer.ProduceSync(background, sent...) {
		if result.Err != nil {
			return nil, result.Err
		}
		offsets = append(offsets, result.Record.Offset)
	}
	return offsets, nil
}

func read(record *kgo.Record) scenario.Record {
	headers := [][]*string{}
	for _, header := range record.Headers {
		headers = append(headers, []*string{&header.Key, scenario.Text(header.Value)})
	}
	return scenario.Record{
		Offset: record.Offset, Timestamp: record.Timestamp.UnixMilli(),
		Key: scenario.Text(record.Key), Value: scenario.Text(record.Value), Headers: headers,
	}
}

// poll gives what comes within a time; an error of the fetch is one.
func poll(consumer *kgo.Client, wait time.Duration, most int) ([]*kgo.Record, error) {
	limit, cancel := context.WithTimeout(background, wait)
	defer cancel()
	fetches := consumer.PollRecords(limit, most)
	for _, failed := range fetches.Errors() {
		if failed.Err != context.DeadlineExceeded {
			return nil, failed.Err
		}
	}
	return fetches.Records(), nil
}

func (client *client) Consume(topic string, partition int32, count int) ([]scenario.Record, error) {
	begin := map[string]map[int32]kgo.Offset{topic: {partition: kgo.NewOffset().AtStart()}}
	consumer, err := client.with(kgo.ConsumePartitions(begin))
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	found := []scenario.Record{}
	for len(found) < count {
		records, err := poll(consumer, 20*time.Second, count-len(found))
		if err != nil || len(records) == 0 {
			return nil, fmt.Errorf("%d of %d came: %v", len(found), count, err)
		}
		for _, record := range records {
			found = append(found, read(record))
		}
	}
	return found, nil
}

type sender struct{ *kgo.Client }

func (client *client) Sender(idempotent bool) (scenario.Sender, error) {
	options := []kgo.Opt{
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.RequiredAcks(kgo.AllISRAcks()), kgo.ProducerLinger(time.Millisecond),
		kgo.MaxBufferedRecords(1000), kgo.RetryBackoffFn(func(int) time.Duration { return 100 * time.Millisecond }),
	}
	if !idempotent {
		options = append(options, kgo.DisableIdempotentWrite())
	}
	made, err := client.with(options...)
	return sender{made}, err
}

func (sender sender) Send(topic string, partition int32, number int, done scenario.Done) {
	record := &kgo.Record{Topic: topic, Partition: partition, Value: []byte(strconv.Itoa(number))}
	sender.Produce(background, record, func(record *kgo.Record, err error) { done(record.Offset, err) })
}

func (sender sender) Close() error {
	defer sender.Client.Close()
	return sender.Flush(background)
}

func (client *client) member(topic, group, strategy string, options ...kgo.Opt) (*kgo.Client, error) {
	options = append(options,
		kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.SessionTimeout(10*time.Second), kgo.HeartbeatInterval(300*time.Millisecond), kgo.FetchMaxWait(200*time.Millisecond),
		kgo.RetryBackoffFn(func(int) time.Duration { return 100 * time.Millisecond }))
	switch strategy {
	case "eager":
		options = append(options, kgo.Balancers(kgo.RangeBalancer()))
	case "cooperative":
		options = append(options, kgo.Balancers(kgo.CooperativeStickyBalancer()))
	case "consumer":
		options = append(options, kgo.Balancers(kgo.StickyBalancer()), kgo.ServerSideBalancer())
	}
	return client.with(options...)
}

func (client *client) Join(topic, group, strategy string, member *scenario.Member) (func() error, error) {
	consumer, err := client.member(topic, group, strategy,
		kgo.AutoCommitInterval(100*time.Millisecond),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, all map[string][]int32) { member.Assigned(all[topic]...) }),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, all map[string][]int32) { member.Revoked(all[topic]...) }),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, all map[string][]int32) { member.Lost(all[topic]...) }))
	if err != nil {
		return nil, err
	}
	over := make(chan struct{})
	var ended sync.WaitGroup
	ended.Go(func() {
		for {
			select {
			case <-over:
				return
			default:
			}
			records, err := poll(consumer, 100*time.Millisecond, 1000)
			if errors.Is(err, kerr.UnknownTopicID) {
				// It keeps to the first topic of a name; with the next of that name this is what it asks of its user.
				consumer.PurgeTopicsFromConsuming(topic)
				consumer.AddConsumeTopics(topic)
				continue
			}
			if err != nil {
				member.Failed(err)
				return
			}
			for _, record := range records {
				member.Record(record.Partition, record.Value)
			}
		}
	})
	return func() error {
		close(over)
		ended.Wait()
		consumer.CloseAllowingRebalance()
		return nil
	}, nil
}

func (client *client) ReadGroup(topic, group, strategy string, count int) ([]scenario.Record, []int32, error) {
	consumer, err := client.member(topic, group, strategy, kgo.DisableAutoCommit())
	if err != nil {
		return nil, nil, err
	}
	defer consumer.Close()
	found, partitions := []scenario.Record{}, []int32{}
	for len(found) < count {
		records, err := poll(consumer, 30*time.Second, count-len(found))
		if err != nil || len(records) == 0 {
			return nil, nil, fmt.Errorf("%d of %d came: %v", len(found), count, err)
		}
		for _, record := range records {
			found, partitions = append(found, read(record)), append(partitions, record.Partition)
		}
	}
	return found, partitions, consumer.CommitUncommittedOffsets(background)
}

func (client *client) Committed(topic, group string) (map[int32]int64, error) {
	answer, err := client.admin.FetchOffsets(background, group)
	if err != nil {
		return nil, err
	}
	found := map[int32]int64{}
	answer.Offsets().Each(func(offset kadm.Offset) { found[offset.Partition] = offset.At })
	return found, nil
}

func main() { scenario.Main(open) }
