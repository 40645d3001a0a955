//! `crossmesh run --dry-run`: what would be done.
//!
//! In: the plan and the starter's command. Out: text. Guarantee: pure; names of secrets are shown, never their values.

use super::plan::JobPlan;
use super::starter::StarterCommand;
use super::words::quote;
use std::fmt::Write;

/// Command line, exported names, and the table of ranks.
pub(crate) fn render(plan: &JobPlan, starter: &str, command: &StarterCommand, exported: &[String]) -> String {
    let mut words: Vec<String> = command.environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
    words.push(quote(command.program.as_os_str()));
    words.extend(command.arguments.iter().map(|argument| quote(argument)));
    let each = if starter == "local" { ", once for each rank" } else { "" };
    let mut text =
        format!("starter: {starter}{each}\ncommand: {}\nexported: {}\n", words.join(" "), exported.join(" "));
    let domains = plan.domains();
    let roles = plan.role(0).is_some();
    let mut row = |rank: &str, role: &str, domain: &str| {
        let mut line = format!("{rank:>6}");
        if roles {
            let _ = write!(line, "  {role:<16}");
        }
        if domains.is_some() {
            let _ = write!(line, "  {domain:>6}");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    };
    row("rank", "role", "domain");
    for rank in 0..plan.size() {
        let domain = domains.as_ref().map(|domains| domains[rank as usize].to_string()).unwrap_or_default();
        row(&rank.to_string(), plan.role(rank).unwrap_or_default(), &domain);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_shown() {
        let command = StarterCommand {
            program: "/usr/bin/mpirun".into(),
            arguments: vec!["-n".into(), "3".into(), "a b".into()],
            environment: vec![("ROOT_IS_MEANT", "1")],
        };
        let roles = vec!["t=1".parse().unwrap(), "g=2".parse().unwrap()];
        let plan = JobPlan::new(None, roles, Some(2)).unwrap();
        let expected = "starter: openmpi\n\
                        command: ROOT_IS_MEANT=1 /usr/bin/mpirun -n 3 'a b'\n\
                        exported: X Y\n  \
                          rank  role              domain\n     \
                             0  t                      0\n     \
                             1  g                      1\n     \
                             2  g                      1\n";
        assert_eq!(render(&plan, "openmpi", &command, &["X".into(), "Y".into()]), expected);
        let plan = JobPlan::new(Some(1), Vec::new(), None).unwrap();
        assert!(render(&plan, "local", &command, &[]).ends_with("\n  rank\n     0\n"));
    }
}
