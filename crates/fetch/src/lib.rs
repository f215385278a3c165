//! Downloads over http and https, and copies from file URLs.
//!
//! A [`Fetcher`](http::Fetcher) resumes a cut transfer, retries with growing waits, gives up a server that stalls
//! or stays busy, and never writes more than was announced. Bytes go to a sink: memory, a blob of the store,
//! or a reader that processes them while they arrive; each is hashed on the way. [`http::Policy`] has the time
//! limits. [`http::Exchange`] carries a registry's calls over the same retries, time limits and classes of errors.
//! URLs in messages are shown without their secrets.

pub mod http;
mod sink;
