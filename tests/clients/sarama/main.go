// The scenarios with sarama.
package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"tidelog.invalid/clients/scenario"
)

var codecs = map[string]sarama.CompressionCodec{
	"none": sarama.CompressionNone, "gzip": sarama.CompressionGZIP, "snappy": sarama.CompressionSnappy,
	"lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD,
}

type client struct {
	brokers []string
	admin   sarama.ClusterAdmin
}

// config that all have: the newest protocol that sarama speaks.
func config() *sarama.Config {
	made := sarama.NewConfig()
	made.Version = sarama.MaxVersion
	made.ClientID = "scenarios"
	made.Metadata.Retry.Max = 100
	made.Metadata.Retry.Backoff = 100 * time.Millisecond
	made.Metadata.AllowAutoTopicCreation = false
	made.Consumer.MaxWaitTime = 200 * time.Millisecond
	made.Consumer.Offsets.Initial = sarama.OffsetOldest
	return made
}

func open(bootstrap string) (scenario.Client, error) {
	brokers := []string{bootstrap}
	admin, err := sarama.NewClusterAdmin(brokers, config())
	return &client{brokers, admin}, err
}

func (client *client) Close() {
	if client.admin != nil {
		client.admin.Close()
	}
}

func (client *client) Create(topic string, partitions int32, configs map[string]string) error {
	return client.admin.CreateTopic(topic, detail(partitions, configs), false)
}

func (client *client) Delete(topic string) error {
	return client.admin.DeleteTopic(topic)
}

func detail(partitions int32, configs map[string]string) *sarama.TopicDetail {
	return &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 1, ConfigEntries: scenario.Pointers(configs)}
}

func (client *client) Administration(run *scenario.Run) error {
	topic, admin := run.Name(""), client.admin
	wanted := detail(2, scenario.Configs)
	if err := admin.CreateTopic(topic, wanted, false); err != nil {
		return err
	}
	run.Tell("created", scenario.Facts{"error": name(admin.CreateTopic(topic, wanted, false))})
	listed := func() bool {
		topics, err := admin.ListTopics()
		_, found := topics[topic]
		return err == nil && found
	}
	run.Tell("listed", scenario.Facts{"found": listed()})
	described := func() ([]int32, []int) {
		partitions, replicas := []int32{}, []int{}
		topics, err := admin.DescribeTopics([]string{topic})
		if err == nil {
			for _, part := range topics[0].Partitions {
				partitions, replicas = append(partitions, part.ID), append(replicas, len(part.Replicas))
			}
		}
		slices.Sort(partitions)
		return partitions, replicas
	}
	partitions, replicas := described()
	run.Tell("described", scenario.Facts{"partitions": partitions, "replicas": replicas})
	configs := func() scenario.Facts {
		found := scenario.Facts{}
		entries, err := admin.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: topic})
		if err == nil {
			for _, entry := range entries {
				found[entry.Name] = entry.Value
			}
		}
		return found
	}
	run.Tell("configs", configs())
	value := "7200000"
	change := map[string]sarama.IncrementalAlterConfigsEntry{
		"retention.ms": {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &value},
	}
	if err := admin.IncrementalAlterConfig(sarama.TopicResource, topic, change, false); err != nil {
		return err
	}
	altered := func() bool { return configs()["retention.ms"] == value }
	if err := scenario.Until(func() string { return "the altered value" }, altered); err != nil {
		return err
	}
	run.Tell("altered", configs())
	if err := admin.CreatePartitions(topic, 5, nil, false); err != nil {
		return err
	}
	grown := func() bool {
		partitions, _ = described()
		return len(partitions) == 5
	}
	if err := scenario.Until(func() string { return "five partitions" }, grown); err != nil {
		return err
	}
	run.Tell("grown", scenario.Facts{"partitions": partitions})
	if err := admin.DeleteTopic(topic); err != nil {
		return err
	}
	if err := scenario.Until(func() string { return "the topic is gone" }, func() bool { return !listed() }); err != nil {
		return err
	}
	run.Tell("deleted", scenario.Facts{"error": name(admin.DeleteTopic(topic))})
	return nil
}

// name of an error as Kafka has it; sarama tells errors in sentences.
func name(err error) string {
	switch {
	case errors.Is(err, sarama.ErrTopicAlreadyExists):
		return "TOPIC_ALREADY_EXISTS"
	case errors.Is(err, sarama.ErrUnknownTopicOrPartition):
		return "UNKNOWN_TOPIC_OR_PARTITION"
	case errors.Is(err, sarama.KError(84)):
		return "ELECTION_NOT_NEEDED"
	case errors.Is(err, sarama.ErrNonEmptyGroup):
		return "NON_EMPTY_GROUP"
	case errors.Is(err, sarama.ErrGroupSubscribedToTopic):
		return "GROUP_SUBSCRIBED_TO_TOPIC"
	case errors.Is(err, sarama.ErrGroupIDNotFound):
		return "GROUP_ID_NOT_FOUND"
	}
	return fmt.Sprint(err)
}

func (client *client) ErrorName(err error) string { return name(err) }

func (client *client) Cluster() (scenario.Facts, error) {
	told, controller, err := client.admin.DescribeCluster()
	brokers := [][]any{}
	for _, broker := range told {
		brokers = append(brokers, []any{broker.ID(), broker.Addr()})
	}
	return scenario.Facts{"brokers": brokers, "controller": controller}, err
}

func (client *client) BrokerConfigs() (map[string]string, error) {
	found := map[string]string{}
	entries, err := client.admin.DescribeConfig(sarama.ConfigResource{Type: sarama.BrokerResource, Name: "1"})
	for _, entry := range entries {
		if slices.Contains(scenario.BrokerKeys, entry.Name) {
			found[entry.Name] = entry.Value
		}
	}
	return found, err
}

func (client *client) AlterBroker(key string, value *string) error {
	change := sarama.IncrementalAlterConfigsEntry{Operation: sarama.IncrementalAlterConfigsOperationSet, Value: value}
	if value == nil {
		change.Operation = sarama.IncrementalAlterConfigsOperationDelete
	}
	changes := map[string]sarama.IncrementalAlterConfigsEntry{key: change}
	return client.admin.IncrementalAlterConfig(sarama.BrokerResource, "1", changes, false)
}

func (client *client) Offsets(topic string) (map[string]int64, error) {
	found := map[string]int64{}
	for name, at := range map[string]int64{
		"earliest": sarama.OffsetOldest, "latest": sarama.OffsetNewest,
		"at": scenario.TimesBegin + 7, "later": scenario.TimesBegin + scenario.AdministrationRecords,
	} {
		answer, err := client.admin.ListOffsets(map[string]map[int32]int64{topic: {0: at}}, nil)
		if err != nil {
			return nil, err
		}
		if err := answer[topic][0].Err; err != nil && !errors.Is(err, sarama.ErrNoError) {
			return nil, err
		}
		found[name] = answer[topic][0].Offset
	}
	return found, nil
}

func (client *client) DeleteRecords(topic string, partition int32, offset int64) (scenario.Facts, error) {
	return scenario.Facts{}, client.admin.DeleteRecords(topic, map[int32]int64{partition: offset})
}

func (client *client) Looks() []scenario.Look {
	return []scenario.Look{
		{Step: "log-dirs", Ask: client.logDirs}, {Step: "elected", Ask: client.elected},
		{Step: "reassignments", Ask: client.reassignments},
	}
}

func (client *client) logDirs(topic string) (scenario.Facts, error) {
	brokers, err := client.admin.DescribeLogDirs([]int32{1})
	partitions := [][]any{}
	for _, folder := range brokers[1] {
		for _, told := range folder.Topics {
			for _, part := range told.Partitions {
				if told.Topic == topic {
					partitions = append(partitions, []any{part.PartitionID, part.Size, part.OffsetLag, part.IsTemporary})
				}
			}
		}
	}
	slices.SortFunc(partitions, func(a, b []any) int { return int(a[0].(int32) - b[0].(int32)) })
	return scenario.Facts{"broker": 1, "partitions": partitions}, err
}

func (client *client) elected(topic string) (scenario.Facts, error) {
	answer, err := client.admin.ElectLeaders(sarama.PreferredElection, map[string][]int32{topic: {0}})
	if err != nil {
		return nil, err
	}
	return scenario.Facts{"error": name(answer[topic][0].ErrorCode)}, nil
}

func (client *client) reassignments(topic string) (scenario.Facts, error) {
	answer, err := client.admin.ListPartitionReassignments(topic, []int32{0, 1})
	ongoing := []int32{}
	for partition := range answer[topic] {
		ongoing = append(ongoing, partition)
	}
	return scenario.Facts{"ongoing": ongoing}, err
}

func (client *client) Described(topic, group string) (scenario.Facts, error) {
	answer, err := client.admin.DescribeConsumerGroups([]string{group})
	if err != nil {
		return nil, err
	}
	members := [][]int32{}
	for _, member := range answer[0].Members {
		assigned, err := member.GetMemberAssignment()
		if err != nil {
			return nil, err
		}
		slices.Sort(assigned.Topics[topic])
		members = append(members, assigned.Topics[topic])
	}
	return scenario.Facts{"state": answer[0].State, "assignor": answer[0].Protocol, "members": members}, nil
}

func (client *client) Listed(group string) (scenario.Facts, error) {
	answer, err := client.admin.ListConsumerGroups()
	groups := [][]string{}
	if kind, found := answer[group]; found {
		groups = append(groups, []string{kind})
	}
	return scenario.Facts{"groups": groups}, err
}

func (client *client) Hold(topic, group, instance string) (func() error, error) {
	options := memberConfig("eager")
	options.Consumer.Group.InstanceId = instance
	made, err := sarama.NewConsumerGroup(client.brokers, group, options)
	if err != nil {
		return nil, err
	}
	limit, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		holder := &reader{count: scenario.AdministrationRecords, full: func() {}}
		ended <- made.Consume(limit, []string{topic}, holder)
	}()
	return func() error {
		cancel()
		return errors.Join(<-ended, made.Close())
	}, nil
}

func (client *client) RemoveMember(group, instance string) error {
	answer, err := client.admin.RemoveMemberFromConsumerGroup(group, []string{instance})
	if err != nil {
		return err
	}
	for _, member := range answer.Members {
		if !errors.Is(member.Err, sarama.ErrNoError) {
			return member.Err
		}
	}
	return nil
}

func (client *client) AlterOffset(topic, group string, partition int32, offset int64) error {
	changes := map[string]map[int32]sarama.OffsetAndMetadata{topic: {partition: {Offset: offset, LeaderEpoch: -1}}}
	answer, err := client.admin.AlterConsumerGroupOffsets(group, changes, nil)
	if err != nil {
		return err
	}
	if code := answer.Errors[topic][partition]; !errors.Is(code, sarama.ErrNoError) {
		return code
	}
	return nil
}

func (client *client) DeleteOffset(topic, group string, partition int32) error {
	return client.admin.DeleteConsumerGroupOffset(group, topic, partition)
}

func (client *client) DeleteGroup(group string) error { return client.admin.DeleteConsumerGroup(group) }

func encoder(text *string) sarama.Encoder {
	if text == nil {
		return nil
	}
	return sarama.StringEncoder(*text)
}

func (client *client) Produce(topic, codec string, records []scenario.Record) ([]int64, error) {
	made := config()
	made.Producer.Compression = codecs[codec]
	made.Producer.Return.Successes = true
	made.Producer.RequiredAcks = sarama.WaitForAll
	made.Producer.Partitioner = sarama.NewManualPartitioner
	made.Producer.Flush.Messages = 50
	made.Producer.Flush.Frequency = 20 * time.Millisecond
	producer, err := sarama.NewSyncProducer(client.brokers, made)
	if err != nil {
		return nil, err
	}
	defer producer.Close()
	sent := []*sarama.ProducerMessage{}
	for _, record := range records {
		message := &sarama.ProducerMessage{
			Topic: topic, Key: encoder(record.Key), Value: encoder(record.Value), Timestamp: time.UnixMilli(record.Timestamp),
		}
		for _, header := range record.Headers {
			message.Headers = append(message.Headers, sarama.RecordHeader{Key: []byte(*header[0]), Value: scenario.Bytes(header[1])})
		}
		sent = append(sent, message)
	}
	if err := producer.SendMessages(sent); err != nil {
		return nil, err
	}
	offsets := []int64{}
	for _, message := range sent {
		offsets = append(offsets, message.Offset)
	}
	return offsets, nil
}

func read(message *sarama.ConsumerMessage) scenario.Record {
	headers := [][]*string{}
	for _, header := range message.Headers {
		name := string(header.Key)
		headers = append(headers, []*string{&name, scenario.Text(header.Value)})
	}
	return scenario.Record{
		Offset: message.Offset, Timestamp: message.Timestamp.UnixMilli(),
		Key: scenario.Text(message.Key), Value: scenario.Text(message.Value), Headers: headers,
	}
}

func (client *client) Consume(topic string, partition int32, count int) ([]scenario.Record, error) {
	consumer, err := sarama.NewConsumer(client.brokers, config())
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	part, err := consumer.ConsumePartition(topic, partition, sarama.OffsetOldest)
	if err != nil {
		return nil, err
	}
	defer part.Close()
	found := []scenario.Record{}
	for len(found) < count {
		select {
		case message := <-part.Messages():
			found = append(found, read(message))
		case <-time.After(20 * time.Second):
			return nil, fmt.Errorf("%d of %d came", len(found), count)
		}
	}
	return found, nil
}

type sender struct {
	sarama.AsyncProducer
	ended sync.WaitGroup
}

type sent struct {
	number int
	done   scenario.Done
}

func (client *client) Sender(idempotent bool) (scenario.Sender, error) {
	made := config()
	made.Producer.RequiredAcks = sarama.WaitForAll
	made.Producer.Return.Successes = true
	made.Producer.Partitioner = sarama.NewManualPartitioner
	made.Producer.Idempotent = idempotent
	made.Producer.Retry.Max = 1000
	made.Producer.Retry.Backoff = 100 * time.Millisecond
	if idempotent {
		// It asks for this.
		made.Net.MaxOpenRequests = 1
	}
	producer, err := sarama.NewAsyncProducer(client.brokers, made)
	if err != nil {
		return nil, err
	}
	begun := &sender{AsyncProducer: producer}
	begun.ended.Go(func() {
		for message := range producer.Successes() {
			message.Metadata.(sent).done(message.Offset, nil)
		}
	})
	begun.ended.Go(func() {
		for failed := range producer.Errors() {
			failed.Msg.Metadata.(sent).done(-1, failed.Err)
		}
	})
	return begun, nil
}

func (sender *sender) Send(topic string, partition int32, number int, done scenario.Done) {
	value := sarama.StringEncoder(strconv.Itoa(number))
	sender.Input() <- &sarama.ProducerMessage{Topic: topic, Partition: partition, Value: value, Metadata: sent{number, done}}
}

func (sender *sender) Close() error {
	sender.AsyncClose()
	sender.ended.Wait()
	return nil
}

func memberConfig(strategy string) *sarama.Config {
	made := config()
	made.Consumer.Group.Session.Timeout = 10 * time.Second
	made.Consumer.Group.Heartbeat.Interval = 300 * time.Millisecond
	made.Consumer.Offsets.AutoCommit.Interval = 100 * time.Millisecond
	made.Consumer.Return.Errors = true
	made.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{sarama.NewBalanceStrategyRange()}
	if strategy == "cooperative" {
		made.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{sarama.NewBalanceStrategyCooperativeSticky()}
	}
	return made
}

// handler tells a member what it is given: a claim lasts as long as its partition is owned.
type handler struct{ member *scenario.Member }

func (handler) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (handler) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (handler handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	handler.member.Assigned(claim.Partition())
	defer handler.member.Revoked(claim.Partition())
	for message := range claim.Messages() {
		handler.member.Record(message.Partition, message.Value)
		session.MarkMessage(message, "")
	}
	return nil
}

func (client *client) Join(topic, group, strategy string, member *scenario.Member) (func() error, error) {
	made, err := sarama.NewConsumerGroup(client.brokers, group, memberConfig(strategy))
	if err != nil {
		return nil, err
	}
	limit, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() {
		for limit.Err() == nil {
			if err := made.Consume(limit, []string{topic}, handler{member}); err != nil {
				member.Failed(err)
				return
			}
		}
	})
	ended.Go(func() {
		for err := range made.Errors() {
			member.Failed(err)
		}
	})
	return func() error {
		cancel()
		err := made.Close()
		ended.Wait()
		return err
	}, nil
}

// reader ends its session when it has what it is to read, and marks no more than that.
type reader struct {
	lock       sync.Mutex
	count      int
	found      []scenario.Record
	partitions []int32
	full       context.CancelFunc
}

func (*reader) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (*reader) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (reader *reader) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		reader.lock.Lock()
		if len(reader.found) < reader.count {
			reader.found = append(reader.found, read(message))
			reader.partitions = append(reader.partitions, message.Partition)
			session.MarkMessage(message, "")
		}
		if len(reader.found) == reader.count {
			reader.full()
		}
		reader.lock.Unlock()
	}
	return nil
}

func (client *client) ReadGroup(topic, group, strategy string, count int) ([]scenario.Record, []int32, error) {
	made, err := sarama.NewConsumerGroup(client.brokers, group, memberConfig(strategy))
	if err != nil {
		return nil, nil, err
	}
	limit, full := context.WithTimeout(context.Background(), 30*time.Second)
	defer full()
	reader := &reader{count: count, full: full}
	for limit.Err() == nil {
		if err := made.Consume(limit, []string{topic}, reader); err != nil && limit.Err() == nil {
			return nil, nil, err
		}
	}
	err = made.Close()
	if len(reader.found) < count {
		return nil, nil, fmt.Errorf("%d of %d came", len(reader.found), count)
	}
	return reader.found, reader.partitions, err
}

func (client *client) Committed(topic, group string) (map[int32]int64, error) {
	answer, err := client.admin.ListConsumerGroupOffsets(group, map[string][]int32{topic: {0, 1}})
	if err != nil {
		return nil, err
	}
	found := map[int32]int64{}
	for partition, block := range answer.Blocks[topic] {
		found[partition] = block.Offset
	}
	return found, nil
}

func main() { scenario.Main(open) }
