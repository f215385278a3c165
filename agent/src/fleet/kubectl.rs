//! The user's kubectl: started without a shell, with time limits and bounded output.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use clap::builder::TypedValueParser as _;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::process::Command;
use tokio::time::timeout;

use super::bounded;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::redact::redacted_text;

/// Size limit of a list of nodes, in bytes: 5,000 nodes, the most that Kubernetes supports, with 100
/// KiB each.
const LARGEST_LIST: u64 = 512 << 20;
/// Size limit of another answer.
pub(super) const LARGEST_ANSWER: u64 = 8 << 20;
/// Size limit of what is kept of kubectl's messages.
const LARGEST_MESSAGE: u64 = 64 << 10;
/// Characters of kubectl's messages that are shown.
const SHOWN: usize = 400;

/// kubectl with the options of the command line.
#[derive(Debug, Clone, clap::Args)]
pub struct Kubectl {
    /// kubectl to run, which has the credentials; by default the one on the PATH
    // A path, or a name to look for on the PATH.
    #[arg(id = "kubectl", long = "kubectl", value_name = "PATH", default_value = "kubectl")]
    pub program: PathBuf,
    /// Context of the kubeconfig file
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
    /// kubeconfig file
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Time limit of each call of kubectl, in seconds
    #[arg(id = "call_limit", long = "call-limit", value_name = "SECONDS", default_value = "120",
          value_parser = clap::value_parser!(u64).range(1..=3600).map(Duration::from_secs))]
    pub limit: Duration,
}

/// Output of a call.
#[derive(Debug)]
pub(super) struct KubectlOutput {
    pub(super) status: ExitStatus,
    pub(super) output: Vec<u8>,
    /// Its messages in one line, bounded and without secrets of URLs.
    pub(super) message: String,
}

impl Kubectl {
    /// Lists the nodes, and reads the list.
    ///
    /// # Errors
    /// Exit code 32 where kubectl is missing, fails, hangs, or answers anything but a list of nodes.
    pub(super) async fn listed<T>(
        &self,
        read: impl FnOnce(&[u8]) -> Result<T, serde_json::Error>,
    ) -> Result<T, Failure> {
        let words = ["get", "nodes", "--output=json"];
        self.read_with(&words, LARGEST_LIST, "a list of nodes", read).await
    }

    /// Reads an object that kubectl prints as JSON; `wanted` is its kind for a message.
    ///
    /// # Errors
    /// Exit code 32 where kubectl fails, or prints another object.
    pub(super) async fn read<T: DeserializeOwned>(
        &self,
        words: &[&str],
        most: u64,
        wanted: &str,
    ) -> Result<T, Failure> {
        self.read_with(words, most, wanted, |json| serde_json::from_slice(json)).await
    }

    /// As [`Kubectl::read`], with a reader of the object.
    ///
    /// # Errors
    /// As [`Kubectl::read`].
    pub(super) async fn read_with<T>(
        &self,
        words: &[&str],
        most: u64,
        wanted: &str,
        read: impl FnOnce(&[u8]) -> Result<T, serde_json::Error>,
    ) -> Result<T, Failure> {
        let answer = self.call(words, most).await?;
        object(words, &answer, wanted, read)
    }

    /// Calls kubectl with these arguments, and waits for its end.
    ///
    /// # Errors
    /// Exit code 32 where it cannot be started, prints more than `most` bytes, or takes longer than
    /// the limit; it is killed then.
    pub(super) async fn call(
        &self,
        arguments: &[&str],
        most: u64,
    ) -> Result<KubectlOutput, Failure> {
        self.call_with(arguments, None, most).await
    }

    /// As [`Kubectl::call`], with this text as standard input.
    ///
    /// # Errors
    /// As [`Kubectl::call`].
    pub(super) async fn call_with(
        &self,
        arguments: &[&str],
        input: Option<&[u8]>,
        most: u64,
    ) -> Result<KubectlOutput, Failure> {
        let name = self.name_of(arguments);
        let mut command = Command::new(&self.program);
        command.args(self.global()).args(arguments);
        let stdin = if input.is_some() { Stdio::piped() } else { Stdio::null() };
        command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.kill_on_drop(true).spawn().map_err(|e| self.not_started(e))?;
        let (output, messages) = (child.stdout.take(), child.stderr.take());
        let stdin = child.stdin.take();
        let ended = async {
            let (output, messages, ()) = tokio::try_join!(
                read(output, most),
                read_and_drop(messages, LARGEST_MESSAGE),
                write(stdin, input.unwrap_or_default())
            )?;
            Ok::<_, io::Error>((child.wait().await?, output, messages))
        };
        let kubectl = |cause: String| Failure::new(FailureKind::Kubectl, cause);
        match timeout(self.limit, ended).await {
            Err(_) => Err(kubectl(format!("{name}: no end within {:?}; killed", self.limit))
                .remedy("check the connection to the cluster, or raise --call-limit")),
            Ok(Err(error)) => Err(kubectl(format!("{name}: {error}; killed"))),
            Ok(Ok((status, output, messages))) => {
                Ok(KubectlOutput { status, output, message: line_of(&messages) })
            }
        }
    }

    /// Options before the command. Each with its value in one word: a value that begins with a dash is
    /// no option.
    fn global(&self) -> Vec<OsString> {
        let mut words = Vec::new();
        if let Some(context) = &self.context {
            words.push(format!("--context={context}").into());
        }
        if let Some(file) = &self.kubeconfig {
            let mut word = OsString::from("--kubeconfig=");
            word.push(file);
            words.push(word);
        }
        words
    }

    fn name_of(&self, arguments: &[&str]) -> String {
        let shown: Vec<&str> = arguments.iter().take(3).copied().collect();
        bounded(&format!("kubectl {}", shown.join(" ")), SHOWN)
    }

    fn not_started(&self, error: io::Error) -> Failure {
        let program = bounded(&self.program.display().to_string(), SHOWN);
        let is_named = self.program.components().count() > 1;
        let cause = match error.kind() {
            ErrorKind::NotFound if !is_named => format!("{program} is not on the PATH"),
            ErrorKind::NotFound => format!("there is no {program}"),
            _ => format!("starting {program}"),
        };
        Failure::new(FailureKind::Kubectl, cause)
            .with_source(error)
            .remedy("install kubectl, or give its path with --kubectl")
    }
}

/// Reads the object that kubectl printed as JSON.
///
/// # Errors
/// As [`Kubectl::read`].
pub(super) fn object<T>(
    words: &[&str],
    answer: &KubectlOutput,
    wanted: &str,
    read: impl FnOnce(&[u8]) -> Result<T, serde_json::Error>,
) -> Result<T, Failure> {
    // Command and kind of object; the names of objects are for the callers to say.
    let name = format!("kubectl {}", words[..2].join(" "));
    if !answer.status.success() {
        return Err(failed(&name, answer));
    }
    read(&answer.output).map_err(|error| {
        let cause = format!("{name}: not {wanted}: {error}");
        Failure::new(FailureKind::Kubectl, bounded(&cause, SHOWN))
    })
}

/// Failure of a call that kubectl itself reported.
pub(super) fn failed(name: &str, answer: &KubectlOutput) -> Failure {
    let failure = Failure::new(FailureKind::Kubectl, format!("{name}: {}", why(answer)));
    // client-go's text of a server that does not answer (pkg/cmd/util, checkErr).
    match answer.message.contains("The connection to the server ") {
        true => failure.remedy("check the kubeconfig (--context, --kubeconfig, KUBECONFIG)"),
        false => failure,
    }
}

/// Reason that kubectl gave, or its exit status.
pub(super) fn why(answer: &KubectlOutput) -> String {
    match answer.message.as_str() {
        "" => format!("kubectl ended with {}, without a message", answer.status),
        message => message.to_owned(),
    }
}

/// Writes all of the input, and closes it. A program that ends before has its reason.
async fn write(to: Option<impl AsyncWrite + Unpin>, input: &[u8]) -> io::Result<()> {
    let Some(mut to) = to else { return Ok(()) };
    match to.write_all(input).await {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

/// Reads to the end; more than `most` bytes are an error.
async fn read(from: Option<impl AsyncRead + Unpin>, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let Some(from) = from else { return Ok(bytes) };
    from.take(most + 1).read_to_end(&mut bytes).await?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other(format!("more than {} MiB of output", most >> 20)));
    }
    Ok(bytes)
}

/// Reads to the end and keeps the last `most` bytes, in which the reason is.
async fn read_and_drop(from: Option<impl AsyncRead + Unpin>, most: u64) -> io::Result<Vec<u8>> {
    let mut kept = Vec::new();
    let Some(mut from) = from else { return Ok(kept) };
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    loop {
        let mut part = [0; 4096];
        let count = from.read(&mut part).await?;
        if count == 0 {
            return Ok(kept);
        }
        kept.extend_from_slice(&part[..count]);
        let over = kept.len().saturating_sub(most);
        kept.drain(..over);
    }
}

/// Last lines of messages, in one.
fn line_of(messages: &[u8]) -> String {
    let text = String::from_utf8_lossy(messages);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    // klog's lines repeat in another form what kubectl's own line below them says.
    let own: Vec<&str> = lines.iter().copied().filter(|line| !is_of_klog(line)).collect();
    let shown = if own.is_empty() { &lines } else { &own };
    let last = &shown[shown.len().saturating_sub(3)..];
    bounded(&redacted_text(&last.join("; ")), SHOWN)
}

/// True for a line such as `E1125 17:45:43.1   99 memcache.go:265] "Unhandled Error"` (k8s.io/klog, formatHeader:
/// severity, month and day, then the time).
fn is_of_klog(line: &str) -> bool {
    let mut words = line.split_ascii_whitespace();
    let is_day = |word: &str| {
        word.len() == 5
            && word.starts_with(['I', 'W', 'E', 'F'])
            && word[1..].bytes().all(|byte| byte.is_ascii_digit())
    };
    words.next().is_some_and(is_day) && words.next().is_some_and(|time| time.contains(':'))
}
