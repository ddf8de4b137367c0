//! Arrow Flight between the processes of Forebay: servers, peers, streams of messages, TLS and tokens.
