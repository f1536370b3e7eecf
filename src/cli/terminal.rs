//! What reaches the terminal: errors and notes on stderr, in colour where it is one; progress for
//! what takes over a second; results on stdout.

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anstyle::{AnsiColor, Style};
use indicatif::{ProgressBar, ProgressStyle};

use super::args::{Terminal, When};
use crate::error::{Error, Result};
use crate::escape::{escaped, escaped_lines};
use crate::report::wrapped;

/// How this run of the program talks to its user.
pub(super) struct Console {
    quiet: bool,
    progress: bool,
    width: Option<usize>,
    #[cfg(feature = "run")]
    live: Live,
}

/// The columns of what stdout is: as COLUMNS says where it is set, else the terminal's; none where it is none.
fn columns() -> Option<usize> {
    let stated = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let found = || terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| usize::from(width.0));
    stated.or_else(found).filter(|&columns| columns > 0)
}

/// How what goes on is shown while it does.
#[cfg(feature = "run")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Live {
    /// Not at all.
    Nothing,
    /// A line every few seconds: there is no terminal.
    Lines,
    /// A bar.
    Bar,
}

impl Console {
    pub(super) fn new(terminal: &Terminal) -> Self {
        let choice = match terminal.color {
            When::Auto => anstream::ColorChoice::Auto,
            When::Always => anstream::ColorChoice::Always,
            When::Never => anstream::ColorChoice::Never,
        };
        choice.write_global();
        let progress = match terminal.progress {
            When::Auto => io::stderr().is_terminal(),
            When::Always => true,
            When::Never => false,
        };
        #[cfg(feature = "run")]
        let live = match terminal.progress {
            When::Never => Live::Nothing,
            When::Auto | When::Always if terminal.quiet => Live::Nothing,
            When::Auto | When::Always if io::stderr().is_terminal() => Live::Bar,
            When::Auto | When::Always => Live::Lines,
        };
        Self {
            quiet: terminal.quiet,
            progress: progress && !terminal.quiet,
            width: columns(),
            #[cfg(feature = "run")]
            live,
        }
    }

    /// How what goes on is shown while it does.
    #[cfg(feature = "run")]
    pub(super) fn live(&self) -> Live {
        self.live
    }

    /// How wide lines on stdout may be; none where that does not matter.
    pub(super) fn width(&self) -> Option<usize> {
        self.width
    }

    /// Whether only errors are wanted.
    pub(super) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// A line for the user that is no result.
    pub(super) fn note(&self, line: &str) {
        if !self.quiet {
            let style = Style::new().fg_color(Some(AnsiColor::Cyan.into()));
            // A closed stderr is no reason to fail.
            let _ = writeln!(anstream::stderr(), "{style}note:{style:#} {}", escaped(line));
        }
    }

    /// A result, its lines broken where the terminal ends. Error: stdout cannot be written; a closed pipe ends
    /// the output quietly.
    pub(super) fn print(&self, text: &str) -> Result<()> {
        if self.quiet {
            return Ok(());
        }
        let text = escaped_lines(text);
        match self.width {
            Some(width) => write_stdout(wrapped(&text, width).as_bytes()),
            None => write_stdout(text.as_bytes()),
        }
    }

    /// Shows what is being done, from one second after the start to the end of the returned guard.
    pub(super) fn working(&self, what: &str) -> Working {
        if !self.progress {
            return Working { messages: None, thread: None };
        }
        let (messages, heard) = mpsc::channel::<String>();
        let mut message = what.to_owned();
        let thread = thread::spawn(move || {
            let shown = Instant::now() + Duration::from_secs(1);
            loop {
                match heard.recv_timeout(shown.saturating_duration_since(Instant::now())) {
                    Ok(next) => message = next,
                    Err(mpsc::RecvTimeoutError::Timeout) => break,
                    Err(mpsc::RecvTimeoutError::Disconnected) => return,
                }
            }
            let bar = ProgressBar::new_spinner().with_message(message);
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(120));
            // Ends when the sender hangs up.
            heard.into_iter().for_each(|message| bar.set_message(message));
            bar.finish_and_clear();
        });
        Working { messages: Some(messages), thread: Some(thread) }
    }
}

/// Ends the progress display when dropped.
pub(super) struct Working {
    messages: Option<mpsc::Sender<String>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Working {
    /// Shows what is being done now.
    pub(super) fn show(&self, message: &str) {
        if let Some(messages) = &self.messages {
            // A display that has ended needs no message.
            let _ = messages.send(message.to_owned());
        }
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        drop(self.messages.take());
        if let Some(thread) = self.thread.take() {
            // The thread only draws; its failure is none of the program's.
            let _ = thread.join();
        }
    }
}

/// Writes bytes to stdout. A reader that has gone away (`| head`) is no error.
pub(super) fn write_stdout(bytes: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|error| Error::io("stdout", error)),
    }
}

/// Streams to stdout. A reader that has gone away is no error.
pub(super) fn stream_stdout(fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    match fill(&mut out).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|error| Error::io("stdout", error)),
    }
}

/// Prints an error: one line, then its details.
pub(super) fn report(error: &Error) {
    let style = Style::new().bold().fg_color(Some(AnsiColor::Red.into()));
    let mut err = anstream::stderr();
    // There is nowhere left to report a failure to.
    let _ = writeln!(err, "{style}error:{style:#} {}", escaped(&error.to_string()));
    for line in error.details() {
        let _ = writeln!(err, "  {}", escaped(line));
    }
}
