//! `crossmesh env`: every environment variable that crossmesh reads.
//!
//! In: the table in `base::env` and the process environment. Out: a table for people, or JSON. Guarantee: no key is
//! ever shown.

use crate::failure::Failure;
use crate::standard_output;
use crossmesh::base::env::{self, Variable};
use serde::Serialize;
use std::process::ExitCode;

/// Arguments of `crossmesh env`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Print JSON for programs instead of a table
    #[arg(long)]
    json: bool,
}

/// Variables whose values let their holder join a job.
const SECRETS: [Variable; 2] = [env::LAUNCHER_KEY, env::UNIQUE_ID];

#[derive(Debug, Serialize)]
struct Entry {
    name: &'static str,
    /// `None` when unset or empty.
    value: Option<String>,
    /// Why the value cannot be used; only lists of fixed values are checked.
    error: Option<String>,
    default: &'static str,
    values: &'static str,
    meaning: &'static str,
}

/// Prints the table; a reader that closes early is no error.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let entries = entries(env::text);
    let text = if arguments.json {
        serde_json::to_string_pretty(&entries).map_err(|cause| Failure::new(1, cause))? + "\n"
    } else {
        table(&entries) + &foreign(&env::unknown())
    };
    standard_output::print(&text).map_err(|cause| Failure::new(1, cause))?;
    Ok(ExitCode::SUCCESS)
}

fn entries(read: impl Fn(Variable) -> Option<String>) -> Vec<Entry> {
    let shown = |variable: Variable| {
        read(variable).map(|value| if SECRETS.contains(&variable) { "(set, hidden)".to_string() } else { value })
    };
    let wrong = env::wrongly_set(&read);
    let error = |name| wrong.iter().find(|error| error.name == name).map(ToString::to_string);
    env::VARIABLES
        .iter()
        .map(|&variable| Entry {
            name: variable.name,
            value: shown(variable),
            error: error(variable.name),
            default: variable.default,
            values: variable.values,
            meaning: variable.meaning,
        })
        .collect()
}

fn table(entries: &[Entry]) -> String {
    let mut text = String::new();
    for entry in entries {
        let value = match &entry.value {
            Some(value) => format!("= {value}"),
            None => "is not set".to_string(),
        };
        let default = if entry.default.is_empty() { "none" } else { entry.default };
        text.push_str(&format!("{} {value}\n", entry.name));
        if let Some(error) = &entry.error {
            text.push_str(&format!("    wrong: {error}\n"));
        }
        text.push_str(&format!("    {}\n", entry.meaning));
        text.push_str(&format!("    values: {}; default: {default}\n", entry.values));
    }
    text
}

fn foreign(names: &[String]) -> String {
    names.iter().map(|name| format!("{name} is set and is none of these\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variable_is_listed_and_keys_are_hidden() {
        let entries = entries(|variable| Some(format!("value-of-{}", variable.name)));
        let text = table(&entries);
        for variable in env::VARIABLES {
            assert!(text.contains(variable.name), "{}", variable.name);
            assert_eq!(
                text.contains(&format!("value-of-{}\n", variable.name)),
                !SECRETS.contains(variable),
                "{}",
                variable.name
            );
        }
    }

    #[test]
    fn values_that_cannot_be_used_are_marked() {
        let set = |variable| match variable {
            env::ROUTE => Some("falt".to_string()),
            env::MAPPED => Some("staged".to_string()),
            _ => None,
        };
        let entries = entries(set);
        let text = table(&entries);
        let error = "CROSSMESH_ROUTE=\"falt\" cannot be used; allowed: hierarchical|flat|gather-broadcast; \
                     correct it or unset CROSSMESH_ROUTE";
        assert!(text.contains(&format!("CROSSMESH_ROUTE = falt\n    wrong: {error}\n")), "{text}");
        assert_eq!(text.matches("wrong: ").count(), 1);
        let json = serde_json::to_value(&entries).unwrap();
        let of =
            |name: &str| json.as_array().unwrap().iter().find(|entry| entry["name"] == name).unwrap()["error"].clone();
        assert_eq!((of("CROSSMESH_ROUTE"), of("CROSSMESH_MAPPED")), (error.into(), serde_json::Value::Null));
    }

    #[test]
    fn misspelt_variables_are_shown() {
        assert_eq!(foreign(&["CROSSMESH_ROUT".to_string()]), "CROSSMESH_ROUT is set and is none of these\n");
        assert_eq!(foreign(&[]), "");
    }

    #[test]
    fn unset_variables_show_their_default() {
        let text = table(&entries(|_| None));
        assert!(text.contains("CROSSMESH_CHUNK is not set\n"));
        assert!(text.contains("default: 1MiB\n"));
        assert!(text.contains("default: none\n"));
    }
}
