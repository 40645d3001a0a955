//! What a subcommand hands back when it cannot do its work.
//!
//! In: the error of any layer. Out: one line on standard error with its causes, and an exit code. Guarantee: bad
//! input exits with 2, so that a script can tell a wrong call from a job that failed.

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;

/// Exit code for arguments, files and environment variables that cannot be used.
pub(crate) const BAD_INPUT: u8 = 2;

/// An error that ends the command.
#[derive(Debug)]
pub(crate) struct Failure {
    exit_code: u8,
    cause: Box<dyn Error>,
}

impl Failure {
    /// `cause` ends the command with `exit_code`.
    pub(crate) fn new(exit_code: u8, cause: impl Into<Box<dyn Error>>) -> Self {
        Self { exit_code, cause: cause.into() }
    }

    /// The message with the chain of its causes, `: ` between them.
    pub(crate) fn message(&self) -> String {
        let mut text = self.cause.to_string();
        let mut source = self.cause.source();
        while let Some(cause) = source {
            text.push_str(": ");
            text.push_str(&cause.to_string());
            source = cause.source();
        }
        text
    }

    /// Writes the message and gives the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        // Nobody may be left to read it; the exit code says the same.
        let _ = writeln!(std::io::stderr(), "crossmesh: {}", self.message());
        ExitCode::from(self.exit_code)
    }
}

impl From<crossmesh::base::env::EnvError> for Failure {
    fn from(cause: crossmesh::base::env::EnvError) -> Self {
        Self::new(BAD_INPUT, cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] std::num::ParseIntError);

    #[test]
    fn message_has_the_whole_chain() {
        let cause = "x".parse::<u32>().unwrap_err();
        assert_eq!(Failure::new(1, Outer(cause)).message(), "outer: invalid digit found in string");
    }
}
