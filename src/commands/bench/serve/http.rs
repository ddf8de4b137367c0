//! Requests over HTTP/1.1.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;

use super::connection::{Connection, Target};
use crate::Fault;

/// One request, for any number of connections.
pub(super) struct HttpTarget {
    address: String,
    request: Vec<u8>,
}

impl HttpTarget {
    /// The request has the file `body` as its body.
    pub(super) fn new(address: &str, body: &Path) -> Result<Self, Fault> {
        let body =
            std::fs::read(body).map_err(|e| Fault::user(format!("cannot read {}", body.display())).because(e))?;
        let head = format!(
            "POST /v1/score HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        Ok(Self { address: address.to_owned(), request: [head.as_bytes(), &body].concat() })
    }
}

impl Target for HttpTarget {
    fn connect(&self) -> Result<Box<dyn Connection>, Fault> {
        let (address, request) = (self.address.clone(), self.request.clone());
        let socket = TcpStream::connect(&address).map_err(|e| no_answer(&address, e))?;
        let _ = socket.set_nodelay(true);
        Ok(Box::new(HttpConnection { address, request, socket, answer: Vec::new() }))
    }
}

struct HttpConnection {
    address: String,
    request: Vec<u8>,
    socket: TcpStream,
    answer: Vec<u8>,
}

impl Connection for HttpConnection {
    fn ask(&mut self) -> Result<(), Fault> {
        let Self { address, request, socket, answer } = self;
        socket.write_all(request).and_then(|()| read_answer(socket, answer)).map_err(|e| no_answer(address, e))
    }
}

fn no_answer(address: &str, error: io::Error) -> Fault {
    Fault::external(format!("the server at {address} does not answer")).because(error)
}

/// Reads one answer with a `Content-Length`; fails unless its status is 200.
fn read_answer(socket: &mut TcpStream, answer: &mut Vec<u8>) -> io::Result<()> {
    let mut piece = [0; 16 << 10];
    let mut more = |answer: &mut Vec<u8>| match socket.read(&mut piece)? {
        0 => Err(io::Error::other("it closed the connection")),
        n => {
            answer.extend_from_slice(&piece[..n]);
            Ok(())
        }
    };
    answer.clear();
    let end = loop {
        more(answer)?;
        if let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") {
            break end;
        }
    };
    let head = String::from_utf8_lossy(&answer[..end]).to_lowercase();
    if !head.starts_with("http/1.1 200") {
        let said = String::from_utf8_lossy(&answer[..answer.len().min(400)]).into_owned();
        return Err(io::Error::other(format!("it refuses the request: {said}")));
    }
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
    let length = length.ok_or_else(|| io::Error::other("its answer has no length"))?;
    while answer.len() < end + 4 + length {
        more(answer)?;
    }
    Ok(())
}
