package scenario

import (
	"fmt"
	"maps"
)

// Administration: so many records, a millisecond from each to the next, of which the first are deleted.
const (
	AdministrationRecords = 10
	deletedRecords        = 4
	TimesBegin            = int64(1_600_000_000_000)
	brokerDefault         = "1048588"
	brokerChange          = "2000000"
	instance              = "instance"
)

// BrokerKeys are those of a broker that are told; the last one is altered.
var BrokerKeys = []string{"group.consumer.heartbeat.interval.ms", "message.max.bytes"}

// Look is a step that only asks.
type Look struct {
	Step string
	Ask  func(topic string) (Facts, error)
}

// Administrator is what a client brings to administer the cluster and its groups.
type Administrator interface {
	Cluster() (Facts, error)
	BrokerConfigs() (map[string]string, error)
	// AlterBroker sets a key of broker 1, or none any more without a value.
	AlterBroker(key string, value *string) error
	Offsets(topic string) (map[string]int64, error)
	// DeleteRecords tells the `low` that is left, where the client tells it.
	DeleteRecords(topic string, partition int32, offset int64) (Facts, error)
	Looks() []Look
	Described(topic, group string) (Facts, error)
	Listed(group string) (Facts, error)
	// Hold begins a member that reads and commits all, and gives what ends it; it goes without a word, as who has an instance does.
	Hold(topic, group, instance string) (func() error, error)
	RemoveMember(group, instance string) error
	AlterOffset(topic, group string, partition int32, offset int64) error
	DeleteOffset(topic, group string, partition int32) error
	DeleteGroup(group string) error
	// ErrorName is Kafka's name of an error.
	ErrorName(err error) string
}

// administrationCluster: the cluster, a broker's settings, and what of a partition is asked and changed by hand.
func administrationCluster(run *Run, client Client) error {
	topic := run.Name("")
	if err := client.Create(topic, 2, map[string]string{"retention.ms": "-1"}); err != nil {
		return err
	}
	records := []Record{}
	for number := range AdministrationRecords {
		text := fmt.Sprint(number)
		records = append(records, Record{Value: &text, Timestamp: TimesBegin + int64(number)})
	}
	if _, err := client.Produce(topic, "none", records); err != nil {
		return err
	}
	cluster, err := client.Cluster()
	if err != nil {
		return err
	}
	run.Tell("cluster", cluster)
	if err := broker(run, client); err != nil {
		return err
	}
	offsets, err := client.Offsets(topic)
	if err != nil {
		return err
	}
	run.Tell("offsets", Facts{"offsets": offsets})
	deleted, err := client.DeleteRecords(topic, 0, deletedRecords)
	if err != nil {
		return err
	}
	found, err := client.Consume(topic, 0, AdministrationRecords-deletedRecords)
	if err != nil {
		return err
	}
	deleted["first"] = found[0].Offset
	run.Tell("records-deleted", deleted)
	for _, look := range client.Looks() {
		facts, err := look.Ask(topic)
		if err != nil {
			return fmt.Errorf("%s: %w", look.Step, err)
		}
		run.Tell(look.Step, facts)
	}
	return nil
}

func broker(run *Run, client Client) error {
	configs, err := client.BrokerConfigs()
	if err != nil {
		return err
	}
	run.Tell("broker", Facts{"configs": configs})
	key, change := BrokerKeys[1], brokerChange
	for _, step := range []struct {
		name  string
		value *string
		found string
	}{{"broker-altered", &change, brokerChange}, {"broker-restored", nil, brokerDefault}} {
		if err := client.AlterBroker(key, step.value); err != nil {
			return err
		}
		told := func() bool {
			configs, err = client.BrokerConfigs()
			return err == nil && configs[key] == step.found
		}
		if err := Until(func() string { return fmt.Sprint(step.name, configs, err) }, told); err != nil {
			return err
		}
		run.Tell(step.name, Facts{"configs": configs})
	}
	return nil
}

// administrationGroups: a group is looked at and changed by hand, with a member, without one, and until it is no more.
func administrationGroups(run *Run, client Client) error {
	topic, group := run.Name(""), run.Name("-group")
	if err := client.Create(topic, 2, nil); err != nil {
		return err
	}
	if err := produce(client, topic, 2, 0, AdministrationRecords); err != nil {
		return err
	}
	leave, err := client.Hold(topic, group, instance)
	if err != nil {
		return err
	}
	half := int64(AdministrationRecords / 2)
	atEnd := func() bool {
		offsets, err := client.Committed(topic, group)
		return err == nil && maps.Equal(offsets, map[int32]int64{0: half, 1: half})
	}
	if err := Until(func() string { return "the end is committed" }, atEnd); err != nil {
		return err
	}
	described := func() (Facts, error) { return client.Described(topic, group) }
	offsets := func() (Facts, error) {
		found, err := client.Committed(topic, group)
		return Facts{"offsets": found}, err
	}
	refused := func(call func() error) func() (Facts, error) {
		return func() (Facts, error) {
			err := call()
			if err == nil {
				return nil, fmt.Errorf("not refused")
			}
			return Facts{"error": client.ErrorName(err)}, nil
		}
	}
	deleteGroup := func() error { return client.DeleteGroup(group) }
	deleteOffset := func() error { return client.DeleteOffset(topic, group, 0) }
	for _, step := range []struct {
		name string
		do   func() error
		look func() (Facts, error)
	}{
		{"member", nil, described},
		{"refused", nil, refused(deleteGroup)},
		{"subscribed", nil, refused(deleteOffset)},
		{"stayed", leave, described},
		{"empty", func() error { return client.RemoveMember(group, instance) }, described},
		{"listed", nil, func() (Facts, error) { return client.Listed(group) }},
		{"offsets", nil, offsets},
		{"altered", func() error { return client.AlterOffset(topic, group, 0, 2) }, offsets},
		{"offset-deleted", deleteOffset, offsets},
		{"deleted", deleteGroup, func() (Facts, error) {
			facts, err := refused(deleteGroup)()
			if err == nil {
				var listed Facts
				listed, err = client.Listed(group)
				maps.Copy(facts, listed)
			}
			return facts, err
		}},
	} {
		if step.do != nil {
			if err := step.do(); err != nil {
				return fmt.Errorf("%s: %w", step.name, err)
			}
		}
		facts, err := step.look()
		if err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		run.Tell(step.name, facts)
	}
	return nil
}
