//! The compose files against the program: their commands, settings and files are such that the real `tidelog` takes them.
//!
//! No container is started here: a machine without Docker finds the same mistakes.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use crate::process;

const FILES: [&str; 2] = ["localstack/compose.minio.yaml", "localstack/compose.localstack.yaml"];

/// Reads YAML, anchors and all, and writes JSON.
const YAML_TO_JSON: &str = "import json, sys, yaml; json.dump(yaml.safe_load(open(sys.argv[1])), sys.stdout)";

/// What the steps of a node's stop share (docs/OPERATIONS.md).
const STOP_SECONDS_MAX: u32 = 25;

#[derive(Debug, Deserialize)]
struct Compose {
    services: BTreeMap<String, Service>,
    #[serde(default)]
    volumes: BTreeMap<String, Option<serde_json::Value>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Service {
    image: Option<String>,
    build: Option<Build>,
    command: serde_json::Value,
    environment: BTreeMap<String, String>,
    ports: Vec<String>,
    volumes: Vec<String>,
    tmpfs: Vec<String>,
    depends_on: BTreeMap<String, Dependency>,
    healthcheck: Option<serde_json::Value>,
    stop_grace_period: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Build {
    context: String,
    dockerfile: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Dependency {
    condition: String,
}

pub(super) fn check() -> Result<()> {
    let python = super::python()?;
    let mut wrong = Vec::new();
    for file in FILES {
        let json = process::output(Command::new(&python).args(["-c", YAML_TO_JSON, file]))?;
        let compose: Compose = serde_json::from_str(&json).with_context(|| format!("read {file}"))?;
        let folder = process::repository().join("localstack");
        wrong.extend(findings(&compose, &folder).into_iter().map(|finding| format!("{file}: {finding}")));
        for (name, service) in compose.services.iter().filter(|(_, service)| service.build.is_some()) {
            let refused = refusal(service, &folder)?;
            wrong.extend(refused.into_iter().map(|finding| format!("{file}: {name}: {finding}")));
        }
    }
    if !wrong.is_empty() {
        bail!("compose files:\n  {}", wrong.join("\n  "));
    }
    println!("compose files: the program takes their commands and settings");
    Ok(())
}

/// What is wrong in a file by itself: names that nothing has, files that are not there, images without a version.
fn findings(compose: &Compose, folder: &Path) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, service) in &compose.services {
        match (&service.image, &service.build) {
            (Some(image), None) => {
                if image.split_once(':').is_none_or(|(_, tag)| tag.is_empty() || tag == "latest") {
                    wrong.push(format!("{name}: image {image} has no version"));
                }
            }
            (None, Some(build)) => {
                if !folder.join(&build.context).join(&build.dockerfile).is_file() {
                    wrong.push(format!("{name}: there is no {}", build.dockerfile));
                }
            }
            _ => wrong.push(format!("{name} has an image or a build, and one of them alone")),
        }
        for (other, dependency) in &service.depends_on {
            let Some(needed) = compose.services.get(other) else {
                wrong.push(format!("{name} depends on {other}, which is no service"));
                continue;
            };
            if dependency.condition == "service_healthy" && needed.healthcheck.is_none() {
                wrong.push(format!("{name} waits for the health of {other}, which has no check"));
            }
        }
        if service.tmpfs.iter().any(|folder| !folder.starts_with('/')) {
            wrong.push(format!("{name}: a tmpfs is a folder of the container"));
        }
        let grace =
            service.stop_grace_period.as_ref().map(|grace| grace.trim_end_matches('s').parse::<u32>());
        if grace.is_some_and(|seconds| seconds.is_ok_and(|seconds| seconds <= STOP_SECONDS_MAX)) {
            wrong.push(format!("{name}: a stop may take {STOP_SECONDS_MAX} s"));
        }
        for volume in &service.volumes {
            let source = volume.split(':').next().unwrap_or_default();
            let is_there = if source.starts_with('.') {
                folder.join(source).exists()
            } else {
                compose.volumes.contains_key(source)
            };
            if !is_there {
                wrong.push(format!("{name}: volume {source} is not there"));
            }
        }
    }
    wrong
}

/// What the program itself says against a service's command and environment.
fn refusal(service: &Service, folder: &Path) -> Result<Vec<String>> {
    let arguments: Vec<String> =
        serde_json::from_value(service.command.clone()).context("a command is a list")?;
    let arguments: Vec<String> =
        arguments.into_iter().map(|argument| on_this_machine(argument, service, folder)).collect();
    let program = || {
        let mut command = Command::new(process::tidelog_binary());
        for name in std::env::vars_os().map(|(name, _)| name) {
            if name.to_string_lossy().starts_with("TIDELOG_") {
                command.env_remove(name);
            }
        }
        command.args(&arguments).envs(&service.environment).current_dir(folder);
        command
    };
    let help = program().arg("--help").output().context("start tidelog")?;
    if !help.status.success() {
        return Ok(vec![String::from_utf8_lossy(&help.stderr).into_owned()]);
    }
    if arguments.first().is_some_and(|verb| verb == "serve") {
        // A setting that is wrong on purpose: the start names every wrong one, so that it must name this one alone.
        let refused = program().env("TIDELOG_NODE_ID", "-1").output().context("start tidelog")?;
        let said = String::from_utf8_lossy(&refused.stderr);
        let is_alone = said.contains("1 setting is wrong") && said.contains("node_id: -1 is negative");
        return Ok(if is_alone { Vec::new() } else { vec![said.into_owned()] });
    }
    let known = String::from_utf8_lossy(&help.stdout).into_owned();
    let ours = service.environment.keys().filter(|name| name.starts_with("TIDELOG_"));
    Ok(ours
        .filter(|name| !known.contains(&format!("[env: {name}=")))
        .map(|name| format!("{name} is read by nobody"))
        .collect())
}

/// A path inside of the container as the file on this machine that is mounted there.
fn on_this_machine(argument: String, service: &Service, folder: &Path) -> String {
    let mounted = service.volumes.iter().find_map(|volume| {
        let mut parts = volume.split(':');
        let (source, target) = (parts.next()?, parts.next()?);
        (target == argument && source.starts_with('.')).then(|| -> PathBuf { folder.join(source) })
    });
    mounted.map_or(argument, |path| path.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_nothing_has_and_an_image_without_a_version_are_found() {
        let compose: Compose = serde_json::from_value(serde_json::json!({
            "services": {
                "store": { "image": "minio/minio:latest", "volumes": ["gone:/data", "held:/x"] },
                "node": {
                    "build": { "context": "..", "dockerfile": "none/Dockerfile" },
                    "depends_on": {
                        "store": { "condition": "service_healthy" },
                        "bucket": { "condition": "service_started" },
                    },
                },
            },
            "volumes": { "held": null },
        }))
        .unwrap();
        assert_eq!(
            findings(&compose, Path::new("/nowhere")),
            [
                "node: there is no none/Dockerfile",
                "node depends on bucket, which is no service",
                "node waits for the health of store, which has no check",
                "store: image minio/minio:latest has no version",
                "store: volume gone is not there",
            ]
        );
    }

    #[test]
    fn a_mounted_file_is_looked_at_where_it_lies() {
        let volumes = vec!["data:/var".to_owned(), "./node.toml:/etc/node.toml:ro".to_owned()];
        let service = Service { volumes, ..Service::default() };
        let at = |argument: &str| on_this_machine(argument.to_owned(), &service, Path::new("/repo"));
        assert_eq!(at("/etc/node.toml"), "/repo/./node.toml");
        assert_eq!((at("serve"), at("/var")), ("serve".to_owned(), "/var".to_owned()));
    }
}
