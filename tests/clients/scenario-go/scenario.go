// Package scenario has the scenarios of tests/clients/README.md for clients in Go: each client is an adapter.
package scenario

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	groupPartitions    = 6
	trafficPause       = 4 * time.Millisecond
	restartPartitions  = 3
	restartRecords     = 400
	restartInFlightMax = 60
	commitPartitions   = 2
	waitMax            = 60 * time.Second
	oldRecords         = 300
	oldCommitted       = 50
	newBegin           = 1000
	newRecords         = 100
)

// Configs are what a topic is made with.
var Configs = map[string]string{"retention.ms": "3600000", "max.message.bytes": "200000"}

// Pointers to the values, as clients take configurations.
func Pointers(configs map[string]string) map[string]*string {
	found := map[string]*string{}
	for name, value := range configs {
		found[name] = &value
	}
	return found
}

// Record is one as JSON has it; a header is a pair of a name and a value.
type Record struct {
	Offset    int64       `json:"offset"`
	Timestamp int64       `json:"timestamp"`
	Key       *string     `json:"key"`
	Value     *string     `json:"value"`
	Headers   [][]*string `json:"headers"`
}

// Bytes of a text, and nil of null.
func Bytes(text *string) []byte {
	if text == nil {
		return nil
	}
	return append([]byte{}, *text...)
}

// Text of bytes, and null of nil.
func Text(bytes []byte) *string {
	if bytes == nil {
		return nil
	}
	text := string(bytes)
	return &text
}

// Facts of a step.
type Facts map[string]any

// Done tells what became of a number that was sent.
type Done func(offset int64, err error)

// Sender is a producer of numbers.
type Sender interface {
	Send(topic string, partition int32, number int, done Done)
	Close() error
}

// Client is what a client library has to bring.
type Client interface {
	Administrator
	Create(topic string, partitions int32, configs map[string]string) error
	Delete(topic string) error
	Administration(run *Run) error
	Produce(topic, codec string, records []Record) ([]int64, error)
	Consume(topic string, partition int32, count int) ([]Record, error)
	Sender(idempotent bool) (Sender, error)
	// Join begins a member that tells what happens to it, and gives what ends it.
	Join(topic, group, strategy string, member *Member) (func() error, error)
	// ReadGroup reads so many records as a member of a group, commits what it read, and goes.
	ReadGroup(topic, group, strategy string, count int) ([]Record, []int32, error)
	Committed(topic, group string) (map[int32]int64, error)
	Close()
}

// Run is one scenario's, and tells of it.
type Run struct {
	Scenario string
	prefix   string
	records  string
}

var (
	lines   sync.Mutex
	answers = bufio.NewReader(os.Stdin)
)

// Name of a topic or group that no other scenario has.
func (run *Run) Name(suffix string) string {
	return run.prefix + "-" + run.Scenario + suffix
}

// Tell a step.
func (run *Run) Tell(step string, facts Facts) {
	told := Facts{"scenario": run.Scenario, "step": step}
	for name, fact := range facts {
		told[name] = fact
	}
	line, err := json.Marshal(told)
	if err != nil {
		panic(err)
	}
	lines.Lock()
	defer lines.Unlock()
	os.Stdout.Write(append(line, '\n'))
}

func (run *Run) wait(what string, topics []string) error {
	run.Tell("wait", Facts{"for": what, "topics": topics})
	_, err := answers.ReadString('\n')
	return err
}

// Until a condition holds.
func Until(what func() string, condition func() bool) error {
	for deadline := time.Now().Add(waitMax); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("not in time: %s", what())
		}
	}
	return nil
}

// Member of a group, as its client tells of it.
type Member struct {
	lock          sync.Mutex
	owned         map[int32]bool
	revoked, lost map[int32]bool
	seen          map[int]bool
	times         []moment
	firstAssigned time.Time
	err           error
	leave         func() error
}

type moment struct {
	when      time.Time
	partition int32
	number    int
}

func newMember() *Member {
	return &Member{owned: map[int32]bool{}, revoked: map[int32]bool{}, lost: map[int32]bool{}, seen: map[int]bool{}}
}

// Assigned partitions, beside what it has.
func (member *Member) Assigned(partitions ...int32) {
	member.lock.Lock()
	defer member.lock.Unlock()
	for _, partition := range partitions {
		member.owned[partition] = true
	}
	if len(partitions) > 0 && member.firstAssigned.IsZero() {
		member.firstAssigned = time.Now()
	}
}

// Revoked partitions.
func (member *Member) Revoked(partitions ...int32) {
	member.taken(member.revoked, partitions)
}

// Lost partitions: not its own any more.
func (member *Member) Lost(partitions ...int32) {
	member.taken(member.lost, partitions)
}

func (member *Member) taken(to map[int32]bool, partitions []int32) {
	member.lock.Lock()
	defer member.lock.Unlock()
	for _, partition := range partitions {
		delete(member.owned, partition)
		to[partition] = true
	}
}

// Record that came.
func (member *Member) Record(partition int32, value []byte) {
	number, err := strconv.Atoi(string(value))
	member.lock.Lock()
	defer member.lock.Unlock()
	if err != nil {
		member.err = err
	}
	member.seen[number] = true
	member.times = append(member.times, moment{time.Now(), partition, number})
}

// Failed for good.
func (member *Member) Failed(err error) {
	member.lock.Lock()
	defer member.lock.Unlock()
	member.err = err
}

func (member *Member) partitions() ([]int32, error) {
	member.lock.Lock()
	defer member.lock.Unlock()
	return sorted(member.owned), member.err
}

func (member *Member) hasSeen(number int) bool {
	member.lock.Lock()
	defer member.lock.Unlock()
	return member.seen[number]
}

// numbers that came from this one on, in their order.
func (member *Member) numbers(from int) []int {
	member.lock.Lock()
	defer member.lock.Unlock()
	found := []int{}
	for _, moment := range member.times {
		if moment.number >= from {
			found = append(found, moment.number)
		}
	}
	return found
}

func (member *Member) between(partitions []int32, begin, end time.Time) int {
	count := 0
	for _, moment := range member.times {
		if slices.Contains(partitions, moment.partition) && moment.when.After(begin) && moment.when.Before(end) {
			count++
		}
	}
	return count
}

func sorted(set map[int32]bool) []int32 {
	found := []int32{}
	for partition := range set {
		found = append(found, partition)
	}
	slices.Sort(found)
	return found
}

func stable(members map[string]*Member) (map[string][]int32, error) {
	var assignments map[string][]int32
	var failed error
	err := Until(func() string { return fmt.Sprintf("assignments settle: %v", assignments) }, func() bool {
		assignments = map[string][]int32{}
		all := map[int32]bool{}
		fair := true
		for name, member := range members {
			owned, err := member.partitions()
			if err != nil {
				failed = err
				return true
			}
			assignments[name] = owned
			fair = fair && len(owned) == groupPartitions/len(members)
			for _, partition := range owned {
				all[partition] = true
			}
		}
		return fair && len(all) == groupPartitions
	})
	if failed != nil {
		return nil, failed
	}
	return assignments, err
}

// traffic sends numbers to a topic's partitions in turn.
type traffic struct {
	stop         chan struct{}
	ended        chan error
	lock         sync.Mutex
	acknowledged map[int]bool
	failed       error
}

func begin(sender Sender, topic string) *traffic {
	flow := &traffic{stop: make(chan struct{}), ended: make(chan error, 1), acknowledged: map[int]bool{}}
	go func() {
		for number := 0; ; number++ {
			select {
			case <-flow.stop:
				flow.ended <- sender.Close()
				return
			case <-time.After(trafficPause):
			}
			sender.Send(topic, int32(number%groupPartitions), number, func(_ int64, err error) {
				flow.lock.Lock()
				defer flow.lock.Unlock()
				if err != nil {
					flow.failed = err
					return
				}
				flow.acknowledged[number] = true
			})
		}
	}()
	return flow
}

func (flow *traffic) end() error {
	close(flow.stop)
	if err := <-flow.ended; err != nil {
		return err
	}
	return flow.failed
}

func group(strategy string) func(*Run, Client) error {
	return func(run *Run, client Client) error {
		topic, name := run.Name(""), run.Name("-group")
		if err := client.Create(topic, groupPartitions, nil); err != nil {
			return err
		}
		sender, err := client.Sender(false)
		if err != nil {
			return err
		}
		flow := begin(sender, topic)
		first, second, third := newMember(), newMember(), newMember()
		join := func(member *Member) error {
			member.leave, err = client.Join(topic, name, strategy, member)
			return err
		}
		for _, member := range []*Member{first, second} {
			if err := join(member); err != nil {
				return err
			}
		}
		before, err := stable(map[string]*Member{"first": first, "second": second})
		if err != nil {
			return err
		}
		run.Tell("two", Facts{"assignments": before})
		// Of what each has now: what it read before says nothing of it.
		settled := time.Now()
		has := func(member *Member, name string) bool {
			member.lock.Lock()
			defer member.lock.Unlock()
			return member.between(before[name], settled, time.Now()) > 0
		}
		read := func() bool { return has(first, "first") && has(second, "second") }
		if err := Until(func() string { return "records come" }, read); err != nil {
			return err
		}
		begun := time.Now()
		if err := join(third); err != nil {
			return err
		}
		all := map[string]*Member{"first": first, "second": second, "third": third}
		after, err := stable(all)
		if err != nil {
			return err
		}
		kept, revoked := map[string]int{}, map[string][]int32{}
		for _, name := range []string{"first", "second"} {
			member := all[name]
			member.lock.Lock()
			staying := slices.DeleteFunc(slices.Clone(before[name]), func(p int32) bool { return !slices.Contains(after[name], p) })
			kept[name] = member.between(staying, begun, third.firstAssigned)
			moved := map[int32]bool{}
			for partition := range member.revoked {
				if slices.Contains(before[name], partition) {
					moved[partition] = true
				}
			}
			revoked[name] = sorted(moved)
			member.lock.Unlock()
		}
		lost := append(sorted(first.lost), sorted(second.lost)...)
		run.Tell("three", Facts{"assignments": after, "revoked": revoked, "lost": lost, "kept_records": kept})
		if err := second.leave(); err != nil {
			return err
		}
		left, err := stable(map[string]*Member{"first": first, "third": third})
		if err != nil {
			return err
		}
		run.Tell("left", Facts{"assignments": left})
		if err := flow.end(); err != nil {
			return err
		}
		missing := []int{}
		err = Until(func() string { return fmt.Sprintf("everything is seen, but %v", missing) }, func() bool {
			missing = missing[:0]
			for number := range flow.acknowledged {
				if !first.hasSeen(number) && !second.hasSeen(number) && !third.hasSeen(number) {
					missing = append(missing, number)
				}
			}
			return len(missing) == 0
		})
		if err != nil {
			return err
		}
		for _, member := range []*Member{first, third} {
			if err := member.leave(); err != nil {
				return err
			}
		}
		run.Tell("done", Facts{"acknowledged": len(flow.acknowledged), "missing": missing})
		return nil
	}
}

func records(run *Run, client Client) error {
	var told struct {
		Records []Record
		Topics  []struct {
			Topic, Codec string
			Configs      map[string]string
		}
	}
	text, err := os.ReadFile(run.records)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, &told); err != nil {
		return err
	}
	topics := []string{}
	for _, topic := range told.Topics {
		name := run.Name("-" + topic.Topic)
		topics = append(topics, name)
		if err := client.Create(name, 1, topic.Configs); err != nil {
			return err
		}
		offsets, err := client.Produce(name, topic.Codec, told.Records)
		if err != nil {
			return err
		}
		run.Tell("produced", Facts{"topic": topic.Topic, "offsets": offsets})
	}
	for _, state := range []string{"hot", "cold"} {
		if state == "cold" {
			if err := run.wait("cold", topics); err != nil {
				return err
			}
		}
		for index, topic := range told.Topics {
			found, err := client.Consume(topics[index], 0, len(told.Records))
			if err != nil {
				return err
			}
			run.Tell("consumed", Facts{"state": state, "topic": topic.Topic, "records": found})
		}
	}
	return nil
}

func commit(strategy string) func(*Run, Client) error {
	return func(run *Run, client Client) error {
		topic, name := run.Name(""), run.Name("-group")
		if err := client.Create(topic, commitPartitions, nil); err != nil {
			return err
		}
		if err := produce(client, topic, commitPartitions, 0, 200); err != nil {
			return err
		}
		sessions := []struct {
			step  string
			count int
		}{{"first", 70}, {"second", 70}, {"third", 60}}
		for _, session := range sessions {
			found, partitions, err := client.ReadGroup(topic, name, strategy, session.count)
			if err != nil {
				return err
			}
			told := [][]int64{}
			for index, record := range found {
				number, err := strconv.ParseInt(*record.Value, 10, 64)
				if err != nil {
					return err
				}
				told = append(told, []int64{int64(partitions[index]), record.Offset, number})
			}
			run.Tell(session.step, Facts{"records": told})
		}
		offsets, err := client.Committed(topic, name)
		if err != nil {
			return err
		}
		run.Tell("committed", Facts{"offsets": offsets})
		return nil
	}
}

func produce(client Client, topic string, partitions, begin, count int) error {
	sender, err := client.Sender(false)
	if err != nil {
		return err
	}
	var failed error
	for number := begin; number < begin+count; number++ {
		sender.Send(topic, int32(number%partitions), number, func(_ int64, err error) {
			if err != nil {
				failed = err
			}
		})
	}
	if err := sender.Close(); err != nil || failed != nil {
		return fmt.Errorf("close: %v, send: %v", err, failed)
	}
	return nil
}

// recreated: a topic is deleted and made again under a member that runs, and under a group whose member comes again.
func recreated(run *Run, client Client) error {
	topic, group, stopped := run.Name(""), run.Name("-group"), run.Name("-stopped")
	if err := client.Create(topic, 1, nil); err != nil {
		return err
	}
	if err := produce(client, topic, 1, 0, oldRecords); err != nil {
		return err
	}
	if err := run.wait("cold", []string{topic}); err != nil {
		return err
	}
	running, again := newMember(), newMember()
	join := func(member *Member, group string) (err error) {
		member.leave, err = client.Join(topic, group, "eager", member)
		return err
	}
	if err := join(running, group); err != nil {
		return err
	}
	if _, _, err := client.ReadGroup(topic, stopped, "eager", oldCommitted); err != nil {
		return err
	}
	committed := func(group string) []int64 {
		found := []int64{}
		offsets, err := client.Committed(topic, group)
		for _, offset := range offsets {
			if err == nil && offset >= 0 {
				found = append(found, offset)
			}
		}
		return found
	}
	atEnd := func() bool { return slices.Equal(committed(group), []int64{oldRecords}) }
	if err := Until(func() string { return "the end is committed" }, atEnd); err != nil {
		return err
	}
	run.Tell("before", Facts{"committed": committed(stopped)})
	if err := client.Delete(topic); err != nil {
		return err
	}
	if err := Until(func() string { return "its offsets are gone" }, func() bool { return len(committed(stopped)) == 0 }); err != nil {
		return err
	}
	if err := client.Create(topic, 1, nil); err != nil {
		return err
	}
	if err := produce(client, topic, 1, newBegin, newRecords); err != nil {
		return err
	}
	if err := join(again, stopped); err != nil {
		return err
	}
	for name, member := range map[string]*Member{"restarted": again, "running": running} {
		seen := func() bool { return member.hasSeen(newBegin + newRecords - 1) }
		if err := Until(func() string { return name + " sees the last record" }, seen); err != nil {
			return err
		}
		if err := member.leave(); err != nil {
			return err
		}
	}
	run.Tell("restarted", Facts{"numbers": again.numbers(0)})
	run.Tell("running", Facts{"numbers": running.numbers(newBegin)})
	return nil
}

func restarts(run *Run, client Client) error {
	topic, of := run.Name(""), restartPartitions*restartRecords
	if err := client.Create(topic, restartPartitions, nil); err != nil {
		return err
	}
	sender, err := client.Sender(true)
	if err != nil {
		return err
	}
	var lock sync.Mutex
	acknowledged, failures := [][]int64{}, []string{}
	slots := make(chan struct{}, restartInFlightMax)
	for number := range of {
		slots <- struct{}{}
		partition := int32(number % restartPartitions)
		sender.Send(topic, partition, number, func(offset int64, err error) {
			lock.Lock()
			defer lock.Unlock()
			if err != nil {
				failures = append(failures, err.Error())
			} else {
				acknowledged = append(acknowledged, []int64{int64(partition), offset, int64(number)})
			}
			if len(acknowledged)%10 == 0 {
				run.Tell("progress", Facts{"acknowledged": len(acknowledged), "of": of})
			}
			<-slots
		})
		// The first of each partition alone: Kafka takes any sequence number from a producer that it does not know, so that a
		// second batch may pass the first where the partition has only just come to be.
		if number < restartPartitions {
			answered := func() bool { return len(slots) == 0 }
			if err := Until(func() string { return "the first answers" }, answered); err != nil {
				return err
			}
		}
	}
	if err := sender.Close(); err != nil {
		return err
	}
	if len(failures) > 0 {
		return fmt.Errorf("%d were not acknowledged: %s", len(failures), failures[0])
	}
	consumed := map[string][][]int64{}
	for partition := range restartPartitions {
		found, err := client.Consume(topic, int32(partition), restartRecords)
		if err != nil {
			return err
		}
		for _, record := range found {
			number, err := strconv.ParseInt(*record.Value, 10, 64)
			if err != nil {
				return err
			}
			key := strconv.Itoa(partition)
			consumed[key] = append(consumed[key], []int64{record.Offset, number})
		}
	}
	run.Tell("done", Facts{"acknowledged": acknowledged, "consumed": consumed, "of": of})
	return nil
}

// Main runs the scenarios that are asked for: each tells how it ended, and none ends the others.
func Main(open func(bootstrap string) (Client, error)) {
	bootstrap := flag.String("bootstrap", "", "HOST:PORT")
	prefix := flag.String("prefix", "", "of the names of topics and groups")
	file := flag.String("records", "", "what to send")
	names := flag.String("scenario", "", "NAME,NAME...")
	flag.Parse()
	scenarios := map[string]func(*Run, Client) error{
		"administration":         func(run *Run, client Client) error { return client.Administration(run) },
		"administration-cluster": administrationCluster,
		"administration-groups":  administrationGroups,
		"records":                records,
		"group-eager":            group("eager"),
		"group-cooperative":      group("cooperative"),
		"group-consumer":         group("consumer"),
		"commit":                 commit("eager"),
		"commit-consumer":        commit("consumer"),
		"recreated":              recreated,
		"restarts":               restarts,
	}
	for _, name := range strings.Split(*names, ",") {
		run := &Run{Scenario: name, prefix: *prefix, records: *file}
		client, err := open(*bootstrap)
		if err == nil {
			err = scenarios[name](run, client)
			client.Close()
		}
		if err != nil {
			run.Tell("failed", Facts{"error": err.Error()})
		} else {
			run.Tell("end", nil)
		}
	}
}
