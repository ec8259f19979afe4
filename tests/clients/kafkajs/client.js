// The scenarios of tests/clients/README.md with kafkajs.
'use strict'

const fs = require('node:fs')
const readline = require('node:readline')
const { parseArgs } = require('node:util')
const { AssignerProtocol, Kafka, CompressionTypes, CompressionCodecs, ConfigResourceTypes, logLevel } = require('kafkajs')
const SnappyCodec = require('kafkajs-snappy')
const lz4 = require('lz4-napi')
const zstd = require('@bokuweb/zstd-wasm')

const CODECS = { none: 'None', gzip: 'GZIP', snappy: 'Snappy', lz4: 'LZ4', zstd: 'ZSTD' }
const CONFIGS = { 'retention.ms': '3600000', 'max.message.bytes': '200000' }
const GROUP_PARTITIONS = 6
const TRAFFIC_PAUSE_MS = 4
const COMMIT_SESSIONS = { first: 70, second: 70, third: 60 }
// Where a group stands, and what it is to do where that is no offset of the log's: of ten records the first four are deleted.
const RESETS = [
  ['within', 7, true],
  ['below-earliest', 2, true],
  ['above-earliest', 1_000_000, true],
  ['below-latest', 2, false],
  ['above-latest', 1_000_000, false],
]
const OLD_RECORDS = 300
const OLD_COMMITTED = 50
const NEW_BEGIN = 1000
const NEW_RECORDS = 100
// Administration: so many records, a millisecond from each to the next, of which the first are deleted.
const RECORDS = 10
const DELETED = 4
const TIMES_BEGIN = 1_600_000_000_000
const BROKER_KEYS = ['group.consumer.heartbeat.interval.ms', 'message.max.bytes']
const BROKER_DEFAULT = '1048588'
const BROKER_CHANGE = '2000000'
const RESTART_PARTITIONS = 3
const RESTART_RECORDS = 400
// Records of each partition in one request: kafkajs has one request in flight where it is idempotent.
const RESTART_BATCH = 5
const WAIT_MS_MAX = 60_000

const { values: options } = parseArgs({
  options: Object.fromEntries(['bootstrap', 'prefix', 'records', 'scenario'].map(name => [name, { type: 'string' }])),
})
const answers = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]()
const pause = ms => new Promise(resolve => setTimeout(resolve, ms))
const text = value => (value == null ? null : value.toString())

const kafka = new Kafka({
  clientId: 'scenarios',
  brokers: [options.bootstrap],
  logLevel: logLevel.ERROR,
  logCreator: () => ({ namespace, log }) => process.stderr.write(`${namespace} ${JSON.stringify(log)}\n`),
  // Longer than any restart of a node takes.
  retry: { initialRetryTime: 50, maxRetryTime: 500, retries: 200 },
})

// Tells steps of one scenario.
class Run {
  constructor(scenario) {
    this.scenario = scenario
    this.open = []
  }

  name(suffix = '') {
    return `${options.prefix}-${this.scenario}${suffix}`
  }

  tell(step, facts = {}) {
    process.stdout.write(JSON.stringify({ scenario: this.scenario, step, ...facts }) + '\n')
  }

  async wait(what, topics) {
    this.tell('wait', { for: what, topics })
    return (await answers.next()).value
  }

  async connected(made) {
    this.open.push(made)
    await made.connect()
    return made
  }

  admin() {
    return this.connected(kafka.admin({ retry: { initialRetryTime: 50, retries: 2 } }))
  }

  producer(settings = {}) {
    return this.connected(kafka.producer({ allowAutoTopicCreation: false, ...settings }))
  }

  consumer(groupId) {
    return this.connected(
      kafka.consumer({ groupId, sessionTimeout: 10_000, heartbeatInterval: 300, maxWaitTimeInMs: 100, allowAutoTopicCreation: false }),
    )
  }

  async create(topic, numPartitions, configs = {}) {
    const admin = await this.admin()
    const configEntries = Object.entries(configs).map(([name, value]) => ({ name, value }))
    await admin.createTopics({ topics: [{ topic, numPartitions, replicationFactor: 1, configEntries }] })
    return admin
  }

  async close() {
    for (const made of this.open) await made.disconnect()
  }
}

async function until(condition, what) {
  const deadline = Date.now() + WAIT_MS_MAX
  while (!(await condition())) {
    if (Date.now() > deadline) throw new Error(`not in time: ${what()}`)
    await pause(20)
  }
}

async function refusal(call) {
  try {
    await call()
  } catch (error) {
    return error.groups?.[0].error.type ?? error.cause?.type ?? error.type ?? error.name
  }
  throw new Error(`not refused: ${call}`)
}

async function administration(run) {
  const topic = run.name()
  const admin = await run.admin()
  const resource = { type: ConfigResourceTypes.TOPIC, name: topic }
  const configs = async () => {
    const { resources } = await admin.describeConfigs({ resources: [resource], includeSynonyms: false })
    return Object.fromEntries(resources[0].configEntries.map(entry => [entry.configName, entry.configValue]))
  }
  const described = async () => (await admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions
  const partitions = async () => (await described()).map(part => part.partitionId).sort()
  const entries = changed => Object.entries({ ...CONFIGS, ...changed }).map(([name, value]) => ({ name, value }))
  const create = () =>
    admin.createTopics({ topics: [{ topic, numPartitions: 2, replicationFactor: 1, configEntries: entries({}) }] })
  await create()
  // kafkajs tells by false that there is such a topic already.
  run.tell('created', { error: (await create()) ? 'none' : 'topic already exists' })
  run.tell('listed', { found: (await admin.listTopics()).includes(topic) })
  run.tell('described', { partitions: await partitions(), replicas: (await described()).map(part => part.replicas.length) })
  run.tell('configs', await configs())
  // It has the call that sets all of them, and no other.
  await admin.alterConfigs({ validateOnly: false, resources: [{ ...resource, configEntries: entries({ 'retention.ms': '7200000' }) }] })
  await until(async () => (await configs())['retention.ms'] === '7200000', () => 'the altered value')
  run.tell('altered', await configs())
  await admin.createPartitions({ topicPartitions: [{ topic, count: 5 }] })
  await until(async () => (await partitions()).length === 5, () => 'five partitions')
  run.tell('grown', { partitions: await partitions() })
  await admin.deleteTopics({ topics: [topic] })
  await until(async () => !(await admin.listTopics()).includes(topic), () => 'the topic is gone')
  run.tell('deleted', { error: await refusal(() => admin.deleteTopics({ topics: [topic] })) })
}

// The cluster, a broker's settings, and what of a partition is asked and changed by hand.
async function administrationCluster(run) {
  const topic = run.name()
  const admin = await run.create(topic, 2, { 'retention.ms': '-1' })
  const producer = await run.producer()
  const messages = [...Array(RECORDS).keys()].map(number => ({ value: `${number}`, partition: 0, timestamp: `${TIMES_BEGIN + number}` }))
  await producer.send({ topic, acks: -1, messages })
  const { brokers, controller, clusterId } = await admin.describeCluster()
  run.tell('cluster', { brokers: brokers.map(({ nodeId, host, port }) => [nodeId, `${host}:${port}`]), controller, id: clusterId })
  await brokerConfigs(run, admin)
  const offset = async told => Number((await told).find(({ partition }) => partition === 0).offset)
  const [{ low, high }] = (await admin.fetchTopicOffsets(topic)).filter(({ partition }) => partition === 0)
  run.tell('offsets', {
    offsets: {
      earliest: Number(low),
      latest: Number(high),
      at: await offset(admin.fetchTopicOffsetsByTimestamp(topic, TIMES_BEGIN + 7)),
      later: await offset(admin.fetchTopicOffsetsByTimestamp(topic, TIMES_BEGIN + RECORDS)),
    },
  })
  await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: `${DELETED}` }] })
  const found = await readAll(run, topic, RECORDS - DELETED)
  run.tell('records-deleted', { first: Number(found[0].message.offset) })
  const { topics } = await admin.listPartitionReassignments({ timeout: 10_000 })
  run.tell('reassignments', { ongoing: topics })
}

async function brokerConfigs(run, admin) {
  const resource = { type: ConfigResourceTypes.BROKER, name: '1' }
  const configs = async () => {
    const { resources } = await admin.describeConfigs({ resources: [resource], includeSynonyms: false })
    const found = resources[0].configEntries.filter(entry => BROKER_KEYS.includes(entry.configName))
    return Object.fromEntries(found.map(entry => [entry.configName, entry.configValue]))
  }
  run.tell('broker', { configs: await configs() })
  // What is set is all that is set.
  const changes = [
    ['broker-altered', [{ name: BROKER_KEYS[1], value: BROKER_CHANGE }], BROKER_CHANGE],
    ['broker-restored', [], BROKER_DEFAULT],
  ]
  for (const [step, configEntries, value] of changes) {
    await admin.alterConfigs({ validateOnly: false, resources: [{ ...resource, configEntries }] })
    await until(async () => (await configs())[BROKER_KEYS[1]] === value, () => `${step} is told`)
    run.tell(step, { configs: await configs() })
  }
}

// A group is looked at and changed by hand: with a member, without one, and until it is no more.
async function administrationGroups(run) {
  const [topic, groupId] = [run.name(), run.name('-group')]
  const admin = await run.create(topic, 2)
  const producer = await run.producer()
  const messages = [...Array(RECORDS).keys()].map(number => ({ value: `${number}`, partition: number % 2 }))
  await producer.send({ topic, acks: -1, messages })
  const described = async () => {
    const [{ state, protocol, members }] = (await admin.describeGroups([groupId])).groups
    const owned = members.map(member => AssignerProtocol.MemberAssignment.decode(member.memberAssignment).assignment)
    return { state, assignor: protocol, members: owned.map(topics => Object.values(topics).flat().sort()) }
  }
  const listed = async () => {
    const { groups } = await admin.listGroups()
    return { groups: groups.filter(told => told.groupId === groupId).map(told => [told.protocolType]) }
  }
  const committed = async () => {
    const [{ partitions }] = await admin.fetchOffsets({ groupId, topics: [topic] })
    return Object.fromEntries(partitions.map(({ partition, offset }) => [partition, Number(offset)]))
  }
  const member = new Member(run, topic, groupId)
  await member.start()
  const half = RECORDS / 2
  await until(async () => Object.values(await committed()).every(offset => offset === half), () => 'the end is committed')
  run.tell('member', await described())
  run.tell('refused', { error: await refusal(() => admin.deleteGroups([groupId])) })
  await member.consumer.disconnect()
  run.tell('empty', await described())
  run.tell('listed', await listed())
  run.tell('offsets', { offsets: await committed() })
  await admin.setOffsets({ groupId, topic, partitions: [{ partition: 0, offset: '2' }] })
  run.tell('altered', { offsets: await committed() })
  await admin.deleteGroups([groupId])
  run.tell('deleted', { error: await refusal(() => admin.deleteGroups([groupId])), ...(await listed()) })
}

// Headers as kafkajs has them: a map, with a list where a name comes more than once.
function headersOf(pairs) {
  const headers = {}
  for (const [name, value] of pairs) {
    headers[name] = name in headers ? [headers[name], value].flat() : value
  }
  return headers
}

// Reads a topic from its begin, in a group of its own: kafkajs has no other way.
async function readAll(run, topic, count) {
  const consumer = await run.consumer(`${topic}-${Date.now()}`)
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  const found = []
  await consumer.run({ autoCommit: false, eachMessage: async ({ partition, message }) => void found.push({ partition, message }) })
  await until(() => found.length >= count, () => `${found.length} of ${count} came`)
  await consumer.disconnect()
  return found
}

async function records(run) {
  const { records: sent, topics } = JSON.parse(fs.readFileSync(options.records))
  const name = topic => run.name(`-${topic}`)
  const producer = await run.producer()
  for (const { topic, codec, configs } of topics) {
    await run.create(name(topic), 1, configs)
    const messages = sent.map(record => ({ ...record, partition: 0, timestamp: `${record.timestamp}`, headers: headersOf(record.headers) }))
    const [answer] = await producer.send({ topic: name(topic), messages, acks: -1, compression: CompressionTypes[CODECS[codec]] })
    const first = Number(answer.baseOffset)
    run.tell('produced', { topic, offsets: sent.map((_, index) => first + index) })
  }
  for (const state of ['hot', 'cold']) {
    if (state === 'cold') await run.wait('cold', topics.map(({ topic }) => name(topic)))
    for (const { topic } of topics) {
      const found = (await readAll(run, name(topic), sent.length)).map(({ message }) => ({
        offset: Number(message.offset),
        timestamp: Number(message.timestamp),
        key: text(message.key),
        value: text(message.value),
        headers: Object.entries(message.headers).flatMap(([name, values]) => [values].flat().map(value => [name, text(value)])),
      }))
      run.tell('consumed', { state, topic, records: found })
    }
  }
}

class Member {
  constructor(run, topic, group) {
    Object.assign(this, { run, topic, group, owned: [], revoked: new Set(), seen: new Set(), numbers: [] })
  }

  async start() {
    this.consumer = await this.run.consumer(this.group)
    this.consumer.on(this.consumer.events.GROUP_JOIN, ({ payload }) => {
      this.owned = payload.memberAssignment[this.topic] ?? []
      if (this.owned.length && !this.firstAssigned) this.firstAssigned = Date.now()
    })
    this.consumer.on(this.consumer.events.REBALANCING, () => {
      this.owned.forEach(partition => this.revoked.add(partition))
      this.owned = []
    })
    await this.consumer.subscribe({ topics: [this.topic], fromBeginning: true })
    await this.consumer.run({
      autoCommitInterval: 100,
      eachMessage: async ({ message }) => {
        this.seen.add(Number(message.value))
        this.numbers.push(Number(message.value))
      },
    })
  }
}

async function stable(members) {
  const share = GROUP_PARTITIONS / Object.keys(members).length
  const owned = () => Object.values(members).map(member => member.owned)
  const settled = () => owned().every(part => part.length === share) && new Set(owned().flat()).size === GROUP_PARTITIONS
  await until(settled, () => `assignments settle: ${JSON.stringify(owned())}`)
  return Object.fromEntries(Object.entries(members).map(([name, member]) => [name, [...member.owned].sort()]))
}

async function group(run) {
  const topic = run.name()
  await run.create(topic, GROUP_PARTITIONS)
  const producer = await run.producer()
  const acknowledged = new Set()
  let failed = null
  let number = 0
  const sends = []
  const traffic = setInterval(() => {
    const value = number++
    const sent = producer.send({ topic, acks: -1, messages: [{ value: `${value}`, partition: value % GROUP_PARTITIONS }] })
    sends.push(sent.then(() => acknowledged.add(value), error => (failed = error)))
  }, TRAFFIC_PAUSE_MS)
  try {
    const [first, second, third] = [1, 2, 3].map(() => new Member(run, topic, run.name('-group')))
    await Promise.all([first.start(), second.start()])
    const before = await stable({ first, second })
    run.tell('two', { assignments: before })
    await until(() => first.numbers.length && second.numbers.length, () => 'records come')
    for (const member of [first, second]) member.revoked.clear()
    await third.start()
    const after = await stable({ first, second, third })
    const revoked = { first: [...first.revoked].sort(), second: [...second.revoked].sort() }
    run.tell('three', { assignments: after, revoked, lost: [] })
    await second.consumer.disconnect()
    run.tell('left', { assignments: await stable({ first, third }) })
    clearInterval(traffic)
    await Promise.all(sends)
    if (failed) throw failed
    const missing = () => [...acknowledged].filter(value => ![first, second, third].some(member => member.seen.has(value)))
    await until(() => missing().length === 0, () => `everything is seen, but ${missing().slice(0, 10)}`)
    run.tell('done', { acknowledged: acknowledged.size, missing: missing() })
  } finally {
    clearInterval(traffic)
  }
}

// Reads so many records as a member of a group, commits what it read, and goes.
async function readGroup(run, topic, groupId, count) {
  const consumer = await run.consumer(groupId)
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  const found = []
  await consumer.run({
    autoCommit: false,
    eachMessage: async ({ partition, message }) => {
      if (found.length < count) found.push([partition, Number(message.offset), Number(message.value)])
    },
  })
  await until(() => found.length === count, () => `${found.length} of ${count} came`)
  const next = new Map(found.map(([partition, offset]) => [partition, offset + 1]))
  await consumer.commitOffsets([...next].map(([partition, offset]) => ({ topic, partition, offset: `${offset}` })))
  await consumer.disconnect()
  return found
}

async function commit(run) {
  const [topic, groupId] = [run.name(), run.name('-group')]
  const admin = await run.create(topic, 2)
  const producer = await run.producer()
  const total = Object.values(COMMIT_SESSIONS).reduce((sum, count) => sum + count)
  const messages = [...Array(total).keys()].map(number => ({ value: `${number}`, partition: number % 2 }))
  await producer.send({ topic, acks: -1, messages })
  for (const [step, count] of Object.entries(COMMIT_SESSIONS)) {
    run.tell(step, { records: await readGroup(run, topic, groupId, count) })
  }
  const [{ partitions }] = await admin.fetchOffsets({ groupId, topics: [topic] })
  run.tell('committed', { offsets: Object.fromEntries(partitions.map(({ partition, offset }) => [partition, Number(offset)])) })
}

async function restarts(run) {
  const topic = run.name()
  await run.create(topic, RESTART_PARTITIONS)
  const retry = { initialRetryTime: 100, maxRetryTime: 500, retries: Number.MAX_SAFE_INTEGER }
  const producer = await run.producer({ idempotent: true, maxInFlightRequests: 1, retry })
  const [acknowledged, of] = [[], RESTART_PARTITIONS * RESTART_RECORDS]
  for (let number = 0; number < of; ) {
    const messages = [...Array(RESTART_BATCH * RESTART_PARTITIONS).keys()].map(index => number + index)
    number += messages.length
    const sent = await producer.send({
      topic,
      acks: -1,
      messages: messages.map(value => ({ value: `${value}`, partition: value % RESTART_PARTITIONS })),
    })
    for (const { partition, baseOffset } of sent) {
      const own = messages.filter(value => value % RESTART_PARTITIONS === partition)
      own.forEach((value, index) => acknowledged.push([partition, Number(baseOffset) + index, value]))
    }
    run.tell('progress', { acknowledged: acknowledged.length, of })
  }
  const consumed = Object.fromEntries([...Array(RESTART_PARTITIONS).keys()].map(partition => [partition, []]))
  for (const { partition, message } of await readAll(run, topic, of)) {
    consumed[partition].push([Number(message.offset), Number(message.value)])
  }
  run.tell('done', { acknowledged, consumed, of })
}

// Sets where a group stands, as a member of it: its admin's call takes five seconds.
async function commitAt(run, topic, groupId, offset) {
  const consumer = await run.consumer(groupId)
  let joined = false
  consumer.on(consumer.events.GROUP_JOIN, () => (joined = true))
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await consumer.run({ autoCommit: false, eachMessage: async () => {} })
  await until(() => joined, () => `${groupId}: the member joins`)
  await consumer.commitOffsets([{ topic, partition: 0, offset: `${offset}` }])
  await consumer.disconnect()
}

// A group whose committed offset the log no longer has, or never had.
async function reset(run) {
  const topic = run.name()
  const admin = await run.create(topic, 1)
  const producer = await run.producer()
  const send = count => producer.send({ topic, acks: -1, messages: [...Array(count).keys()].map(number => ({ value: `${number}` })) })
  await send(10)
  // An admin of kafkajs knows a topic's leaders only once it has asked for something of it.
  await admin.fetchTopicOffsets(topic)
  await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '4' }] })
  for (const [step, offset, fromBeginning] of RESETS) {
    const groupId = run.name(`-${step}`)
    await commitAt(run, topic, groupId, offset)
    const [{ low, high }] = await admin.fetchTopicOffsets(topic)
    const consumer = await run.consumer(groupId)
    await consumer.subscribe({ topics: [topic], fromBeginning })
    const found = []
    await consumer.run({ autoCommit: false, eachMessage: async ({ message }) => void found.push(Number(message.offset)) })
    // Who goes to the end sees only what comes once it is there.
    await until(async () => {
      if (!fromBeginning) await send(1)
      return found.length > 0
    }, () => `${step}: a record comes`)
    await consumer.disconnect()
    run.tell(step, { first: found[0], begin: Number(low), end: Number(high) })
  }
}

// A topic is deleted and made again under a member that runs, and under a group whose member comes again.
async function recreated(run) {
  const [topic, running, stopped] = [run.name(), run.name('-group'), run.name('-stopped')]
  const admin = await run.create(topic, 1)
  const producer = await run.producer()
  const produce = numbers => producer.send({ topic, acks: -1, messages: numbers.map(number => ({ value: `${number}` })) })
  // Of all topics: for one of them kafkajs asks first of what partitions it consists.
  const committed = async groupId =>
    (await admin.fetchOffsets({ groupId })).flatMap(told => told.partitions.map(part => Number(part.offset)))
  await produce([...Array(OLD_RECORDS).keys()])
  await run.wait('cold', [topic])
  const first = new Member(run, topic, running)
  await first.start()
  await readGroup(run, topic, stopped, OLD_COMMITTED)
  await until(async () => `${await committed(running)}` === `${OLD_RECORDS}`, () => 'the end is committed')
  run.tell('before', { committed: await committed(stopped) })
  await admin.deleteTopics({ topics: [topic] })
  await until(async () => (await committed(stopped)).length === 0, () => 'its offsets are gone')
  await admin.createTopics({ topics: [{ topic, numPartitions: 1, replicationFactor: 1 }] })
  await produce([...Array(NEW_RECORDS).keys()].map(number => NEW_BEGIN + number))
  const again = new Member(run, topic, stopped)
  await again.start()
  for (const [name, member, begin] of [['restarted', again, 0], ['running', first, NEW_BEGIN]]) {
    await until(() => member.seen.has(NEW_BEGIN + NEW_RECORDS - 1), () => `${name} sees the last record`)
    await member.consumer.disconnect()
    run.tell(name, { numbers: member.numbers.filter(number => number >= begin) })
  }
}

const SCENARIOS = {
  administration,
  'administration-cluster': administrationCluster,
  'administration-groups': administrationGroups,
  records,
  'group-eager': group,
  commit,
  reset,
  recreated,
  restarts,
}

async function main() {
  CompressionCodecs[CompressionTypes.Snappy] = SnappyCodec
  CompressionCodecs[CompressionTypes.LZ4] = () => ({
    compress: encoder => lz4.compressFrame(encoder.buffer),
    decompress: buffer => lz4.decompressFrame(buffer),
  })
  await zstd.init()
  CompressionCodecs[CompressionTypes.ZSTD] = () => ({
    compress: async encoder => Buffer.from(zstd.compress(encoder.buffer)),
    decompress: async buffer => Buffer.from(zstd.decompress(buffer)),
  })
  for (const name of options.scenario.split(',')) {
    const run = new Run(name)
    try {
      await SCENARIOS[name](run)
      await run.close()
      run.tell('end')
    } catch (error) {
      run.tell('failed', { error: `${error.stack}` })
    }
  }
  // Once all that was told is written: an exit would not wait for a pipe that is full.
  process.stdout.write('', () => process.exit(0))
}

main()
