//! Runs the scripts against one broker.

use std::{collections::BTreeMap, time::SystemTime};

use anyhow::{Context as _, Result, bail};
use tidelog_wire::{ApiKey, Versions};

use crate::{
    client::{Connection, now, pause},
    codec,
    evaluate::{Variables, evaluate, fill, optional_fields},
    normalise::{Names, Rules, normalise},
    script::{Action, Body, Exchange, Scenario, Script, Step, Waiting},
    value::Tree,
};

/// How long something may take that is asked again until it is so.
const UNTIL_SECONDS: u64 = 15;

/// A scenario that takes longer is told.
const SLOW_SECONDS: f64 = 5.0;

/// Where an answer belongs: file, scenario, version of the scenario (-1 without one), number of the step.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The file.
    pub script: String,
    /// The scenario; the setup has none.
    pub scenario: String,
    /// The step, from 1 on.
    pub step: usize,
    /// The scenario's version.
    pub version: i16,
}

/// An answer without what is the broker's own, and whose it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The API.
    pub api: ApiKey,
    /// The version that was asked.
    pub version: i16,
    /// The answer.
    pub value: Tree,
}

/// All answers.
pub type Answers = BTreeMap<Place, Answer>;

/// What a broker announces.
pub type Announced = BTreeMap<ApiKey, Versions>;

/// A broker and what is run against it.
#[derive(Debug)]
pub struct Runner<'a> {
    address: &'a str,
    rules: &'a Rules,
    announced: Announced,
    /// What all names of this run begin with, so that it finds none of another run.
    salt: String,
    started_ms: i64,
    /// A failed scenario ends the run.
    is_strict: bool,
    answers: Answers,
    /// Scenarios that need an API that is not announced: by that API, how many.
    pub waiting: BTreeMap<String, usize>,
    /// What went wrong in scenarios that could not go on.
    pub failures: Vec<String>,
}

/// What ApiVersions says.
///
/// # Errors
/// Nobody answers.
pub fn announced(address: &str) -> Result<Announced> {
    let mut connection = Connection::new(address);
    connection.send(ApiKey::ApiVersions, 0, &[], true)?;
    let answer = connection.receive()?;
    let Some(Tree::Array(keys)) = answer.field("api_keys") else { bail!("{address} answers {answer}") };
    let number = |key: &Tree, name: &str| match key.field(name) {
        Some(Tree::Int(value)) => i16::try_from(*value).unwrap_or(-1),
        _ => -1,
    };
    Ok(keys
        .iter()
        .filter_map(|key| {
            let api = ApiKey::from_key(number(key, "api_key"))?;
            Some((api, Versions { min: number(key, "min_version"), max: number(key, "max_version") }))
        })
        .collect())
}

impl<'a> Runner<'a> {
    /// Asks the broker what it announces. A strict one ends at the first scenario that cannot go on.
    ///
    /// # Errors
    /// Nobody answers.
    pub fn new(address: &'a str, rules: &'a Rules, is_strict: bool) -> Result<Self> {
        #[expect(
            clippy::disallowed_methods,
            reason = "this runs beside other programs and is never simulated"
        )]
        let started = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        let salt = format!("q{:04x}", started.as_secs() & 0xffff);
        Ok(Self {
            address,
            rules,
            announced: announced(address)?,
            salt,
            started_ms: i64::try_from(started.as_millis())?,
            is_strict,
            answers: Answers::new(),
            waiting: BTreeMap::new(),
            failures: Vec::new(),
        })
    }

    /// What the broker announces.
    #[must_use]
    pub fn announced(&self) -> &Announced {
        &self.announced
    }

    /// The answers.
    #[must_use]
    pub fn into_answers(self) -> Answers {
        self.answers
    }

    /// The answers so far.
    #[must_use]
    pub fn answers(&self) -> &Answers {
        &self.answers
    }

    /// Runs the scenarios of a file that `is_wanted` names; `versions` says which versions of an API there are at most.
    ///
    /// # Errors
    /// A script that is wrong, and where the runner is strict a scenario that cannot go on.
    pub fn run(
        &mut self,
        number: usize,
        script: &Script,
        is_wanted: impl Fn(&Scenario) -> bool,
        versions: impl Fn(ApiKey) -> Versions,
    ) -> Result<()> {
        let wanted: Vec<&Scenario> = script.scenarios.iter().filter(|scenario| is_wanted(scenario)).collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let file_token = format!("{}f{number:02}q", self.salt);
        let mut names =
            Names { tokens: vec![(file_token.clone(), "$f")], now: self.started_ms, ..Names::default() };
        let mut variables = Variables::new();
        variables.insert("f".to_owned(), Tree::Text(file_token));
        if let Some(missing) = self.missing(&script.setup, -1) {
            *self.waiting.entry(missing).or_default() += wanted.len();
            return Ok(());
        }
        self.steps(script, "", -1, &script.setup, &mut variables, &mut names)?;
        for (position, scenario) in wanted.into_iter().enumerate() {
            let range = match scenario.subject {
                None => vec![-1],
                Some((api, range)) => {
                    versions(api).iter().filter(|version| range.contains(*version)).collect()
                }
            };
            for version in range {
                if let Some(missing) = self.missing(&scenario.steps, version) {
                    *self.waiting.entry(missing).or_default() += 1;
                    continue;
                }
                let token = format!("{}s{number:02}x{position:03}x{version:03}q", self.salt);
                let mut variables = variables.clone();
                variables.insert("n".to_owned(), Tree::Text(token.clone()));
                variables.insert("v".to_owned(), Tree::Int(i64::from(version)));
                let mut names = names.clone();
                names.tokens.push((token, "$n"));
                let begun = now();
                self.steps(script, &scenario.name, version, &scenario.steps, &mut variables, &mut names)?;
                let seconds = begun.elapsed().as_secs_f64();
                if seconds > SLOW_SECONDS {
                    println!("{seconds:.1} s: {}: {} of version {version}", script.name, scenario.name);
                }
            }
        }
        Ok(())
    }

    /// The first API of some steps that the broker does not announce.
    fn missing(&self, steps: &[Step], version: i16) -> Option<String> {
        steps.iter().filter(|step| version < 0 || step.versions.contains(version)).find_map(|step| {
            let (api, version) = match &step.action {
                Action::Topic(..) => (ApiKey::CreateTopics, 7),
                Action::Exchange(Exchange { api, version: asked, body: Body::Message(..), .. }) => {
                    (*api, asked.unwrap_or(version))
                }
                _ => return None,
            };
            // A version that nobody has is asked on purpose.
            let is_asked_wrongly = api == ApiKey::ApiVersions;
            let is_there = self.announced.get(&api).is_some_and(|announced| announced.contains(version));
            (!is_there && !is_asked_wrongly).then(|| format!("{api} {version}"))
        })
    }

    fn steps(
        &mut self,
        script: &Script,
        scenario: &str,
        version: i16,
        steps: &[Step],
        variables: &mut Variables,
        names: &mut Names,
    ) -> Result<()> {
        let mut connections = BTreeMap::new();
        let mut sent = BTreeMap::new();
        for (step, number) in steps.iter().zip(1..) {
            if version >= 0 && !step.versions.contains(version) {
                continue;
            }
            let place =
                Place { script: script.name.clone(), scenario: scenario.to_owned(), step: number, version };
            let connection =
                connections.entry(step.connection.clone()).or_insert_with(|| Connection::new(self.address));
            let outcome = self.step(&place, step, connection, &mut sent, variables, names);
            if let Err(error) = outcome {
                let told = format!(
                    "{}.parity, line {}, scenario \"{scenario}\" of version {version}: {error:#}",
                    script.name, step.line
                );
                if self.is_strict {
                    bail!(told);
                }
                self.failures.push(told);
                return Ok(());
            }
        }
        Ok(())
    }

    fn step(
        &mut self,
        place: &Place,
        step: &Step,
        connection: &mut Connection,
        sent: &mut BTreeMap<String, (ApiKey, i16)>,
        variables: &mut Variables,
        names: &mut Names,
    ) -> Result<()> {
        match &step.action {
            Action::Let(name, value) => {
                let evaluated = evaluate(value, variables)?;
                let mut optional = optional_names(variables);
                optional.extend(optional_fields(value));
                let optional = optional.into_iter().map(Tree::Text).collect();
                variables.insert(OPTIONAL.to_owned(), Tree::Array(optional));
                variables.insert(name.clone(), evaluated);
            }
            Action::Wait(milliseconds) => pause(*milliseconds),
            Action::Close => connection.close(),
            Action::Topic(name, partitions, settings, id) => {
                let name = fill(name, variables)?;
                let made = create_topic(self.address, &name, *partitions, settings, variables)?;
                if let Some(id) = id {
                    variables.insert(id.clone(), made);
                }
            }
            Action::Receive(captures) => {
                let (api, version) =
                    sent.remove(&step.connection).context("nothing was sent on this connection")?;
                let answer = connection.receive()?;
                self.keep(place, api, version, &answer, names);
                capture(&answer, captures, variables)?;
            }
            Action::Exchange(exchange) => {
                let version = exchange.version.unwrap_or(place.version);
                let Some(answer) = ask(exchange, version, connection, variables)? else {
                    if exchange.waiting == Waiting::Later {
                        sent.insert(step.connection.clone(), (exchange.api, version));
                    }
                    return Ok(());
                };
                self.keep(place, exchange.api, version, &answer, names);
                capture(&answer, &exchange.captures, variables)?;
            }
        }
        Ok(())
    }

    fn keep(&mut self, place: &Place, api: ApiKey, version: i16, answer: &Tree, names: &mut Names) {
        let value = normalise(self.rules, names, api.name(), answer);
        self.answers.insert(place.clone(), Answer { api, version, value });
    }
}

/// The variable of the fields that were marked as optional where a variable was given its value; no script can name it.
const OPTIONAL: &str = "?";

fn optional_names(variables: &Variables) -> Vec<String> {
    let Some(Tree::Array(names)) = variables.get(OPTIONAL) else { return Vec::new() };
    let name = |name: &Tree| match name {
        Tree::Text(name) => Some(name.clone()),
        _ => None,
    };
    names.iter().filter_map(name).collect()
}

fn capture(answer: &Tree, captures: &[(String, String)], variables: &mut Variables) -> Result<()> {
    for (name, path) in captures {
        let value = answer.at(path).with_context(|| format!("no {path} in {answer}"))?;
        variables.insert(name.clone(), value.clone());
    }
    Ok(())
}

/// Sends and, where the answer comes now, receives.
fn ask(
    exchange: &Exchange,
    version: i16,
    connection: &mut Connection,
    variables: &Variables,
) -> Result<Option<Tree>> {
    let api = exchange.api;
    let bytes = |expression| match evaluate(expression, variables)? {
        Tree::Bytes(bytes) => Ok(bytes),
        other => bail!("these are no bytes: {other}"),
    };
    let body = match &exchange.body {
        Body::Stream(content) => {
            connection.send_bytes(&bytes(content)?)?;
            return connection.receive_anything().map(Some);
        }
        Body::Frame(content) => {
            let content = bytes(content)?;
            let mut frame = i32::try_from(content.len())?.to_be_bytes().to_vec();
            frame.extend_from_slice(&content);
            connection.send_bytes(&frame)?;
            return connection.receive_anything().map(Some);
        }
        Body::Raw(content) => bytes(content)?,
        Body::Message(message, damage) => {
            let value = evaluate(message, variables)?;
            let mut optional = optional_names(variables);
            optional.extend(optional_fields(message));
            let mut body = codec::encode(api, version, &value, &optional)?;
            body.truncate(body.len().saturating_sub(damage.cut));
            if let Some(extra) = &damage.extra {
                body.extend_from_slice(&bytes(extra)?);
            }
            body
        }
    };
    match &exchange.waiting {
        Waiting::None => connection.send(api, version, &body, false).map(|()| None),
        Waiting::Later => connection.send(api, version, &body, true).map(|()| None),
        Waiting::Answer => {
            connection.send(api, version, &body, true)?;
            connection.receive().map(Some)
        }
        Waiting::Until(path, wanted) => {
            let wanted = evaluate(wanted, variables)?;
            let begun = now();
            loop {
                connection.send(api, version, &body, true)?;
                let answer = connection.receive()?;
                if answer.at(path) == Some(&wanted) || begun.elapsed().as_secs() >= UNTIL_SECONDS {
                    return Ok(Some(answer));
                }
                pause(20);
            }
        }
    }
}

/// Creates a topic that keeps what it is given, and waits until it serves; answers its id.
fn create_topic(
    address: &str,
    name: &str,
    partitions: i64,
    settings: &[(String, String)],
    variables: &Variables,
) -> Result<Tree> {
    let structure = |fields: &[(&str, Tree)]| {
        Tree::Struct(fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect())
    };
    let list = |element: Tree| Tree::Array(vec![element]);
    let mut configs = Vec::new();
    if settings.iter().all(|(key, _)| key != "retention.ms") {
        configs.push(structure(&[("name", Tree::text("retention.ms")), ("value", Tree::text("-1"))]));
    }
    for (key, value) in settings {
        let value = Tree::Text(fill(value, variables)?);
        configs.push(structure(&[("name", Tree::text(key)), ("value", value)]));
    }
    let topic = structure(&[
        ("name", Tree::text(name)),
        ("num_partitions", Tree::Int(partitions)),
        ("replication_factor", Tree::Int(1)),
        ("configs", Tree::Array(configs)),
    ]);
    let mut connection = Connection::new(address);
    let mut call = |api, version, request: Tree| {
        connection.send(api, version, &codec::encode(api, version, &request, &[])?, true)?;
        connection.receive()
    };
    let made = call(ApiKey::CreateTopics, 7, structure(&[("topics", list(topic))]))?;
    let no_error = Some(&Tree::Int(0));
    if made.at("topics[0].error_code") != no_error {
        bail!("create topic {name}: {made}");
    }
    let id = made.at("topics[0].topic_id").context("no id")?.clone();
    let asked = structure(&[("name", Tree::text(name))]);
    let metadata = structure(&[("topics", list(asked)), ("allow_auto_topic_creation", Tree::Bool(false))]);
    let of_partitions = (0..partitions).map(|partition| {
        structure(&[("partition_index", Tree::Int(partition)), ("timestamp", Tree::Int(-1))])
    });
    let asked =
        structure(&[("name", Tree::text(name)), ("partitions", Tree::Array(of_partitions.collect()))]);
    let offsets = structure(&[("replica_id", Tree::Int(-1)), ("topics", list(asked))]);
    let begun = now();
    loop {
        let seen = call(ApiKey::Metadata, 12, metadata.clone())?;
        let served = call(ApiKey::ListOffsets, 7, offsets.clone())?;
        let is_led = (0..partitions).all(|partition| {
            let error = format!("topics[0].partitions[{partition}].error_code");
            seen.at(&error) == no_error && served.at(&error) == no_error
        });
        if is_led {
            return Ok(id);
        }
        if begun.elapsed().as_secs() > UNTIL_SECONDS {
            bail!("topic {name} does not serve: {seen} {served}");
        }
        pause(10);
    }
}
