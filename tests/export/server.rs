//! A server of the tests, requests to it, and rows as JSON.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{
    DataType, Date32Type, Float32Type, Float64Type, Int32Type, Int64Type, TimestampNanosecondType, UInt32Type,
};
use serde_json::{Value, json};

use crate::common::{self, Background};

/// `forebay serve`, and where it listens.
pub(crate) struct Server {
    pub(crate) process: Background,
    pub(crate) address: String,
}

impl Server {
    /// Starts it, and waits until it serves.
    pub(crate) fn start(model: &Path, more: &[&str]) -> Self {
        let arguments = ["serve", "--model", model.to_str().unwrap(), "--listen", "127.0.0.1:0", "--watch", "0.05"];
        Self::of(&mut common::forebay(&[&arguments[..], more].concat()))
    }

    /// The same of a command.
    pub(crate) fn of(command: &mut Command) -> Self {
        let mut process = Background::start(command);
        process.wait_for("rows, version", 1);
        let said = process.output();
        let line = said.lines().find(|line| line.starts_with("serving ")).unwrap();
        let (_, rest) = line.split_once("://").unwrap();
        let address = rest.split(": ").next().unwrap().to_owned();
        Self { process, address }
    }

    /// Sends a request; returns status and body.
    pub(crate) fn send(&self, method: &str, path: &str, body: &[u8]) -> (u16, String) {
        self.send_with(method, path, "", body)
    }

    pub(crate) fn send_with(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> (u16, String) {
        let mut socket = self.connect();
        let head = head(method, path, headers, body.len());
        // A server that refuses a long body may close before it has read all of it.
        let _ = socket.write_all(&[head.as_bytes(), body].concat());
        read_answer(socket)
    }

    /// Sends the head of a request, and waits until the server asks for its body, of so many bytes.
    pub(crate) fn begin(&self, method: &str, path: &str, length: usize) -> TcpStream {
        let mut socket = self.connect();
        socket.write_all(head(method, path, "Expect: 100-continue\r\n", length).as_bytes()).unwrap();
        let mut said = [0; CONTINUE.len()];
        socket.read_exact(&mut said).unwrap();
        assert_eq!(&said, CONTINUE);
        socket
    }

    fn connect(&self) -> TcpStream {
        let socket = TcpStream::connect(&self.address).unwrap();
        socket.set_read_timeout(Some(common::DEADLINE)).unwrap();
        socket
    }

    /// The version and the scores of rows.
    pub(crate) fn scores(&self, rows: &[Value]) -> (String, Vec<Option<f32>>) {
        let (status, body) = self.send("POST", "/v1/score", json!({ "rows": rows }).to_string().as_bytes());
        assert_eq!(status, 200, "{body}");
        let answer: Answer = serde_json::from_str(&body).unwrap();
        (answer.version, answer.scores)
    }

    /// What `GET /v1/model` says.
    pub(crate) fn model(&self) -> Value {
        let (status, body) = self.send("GET", "/v1/model", b"");
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    /// The value of a metric without labels.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let (_, text) = self.send("GET", "/metrics", b"");
        let line = text.lines().find(|line| line.starts_with(&format!("forebay_serve_{name} ")));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).split(' ').nth(1).unwrap().parse().unwrap()
    }
}

const CONTINUE: &[u8; 25] = b"HTTP/1.1 100 Continue\r\n\r\n";

fn head(method: &str, path: &str, headers: &str, length: usize) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nHost: forebay\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n"
    )
}

/// Reads an answer to the end of the connection; returns status and body.
fn read_answer(socket: TcpStream) -> (u16, String) {
    read_to_end(socket).unwrap_or_else(|answer| panic!("no answer: {answer:?}"))
}

/// The same. What comes instead, if the connection ends within the answer.
pub(crate) fn read_to_end(mut socket: TcpStream) -> Result<(u16, String), String> {
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    let Some((head, body)) = answer.split_once("\r\n\r\n") else { return Err(answer) };
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Ok((status, body.to_owned()))
}

#[derive(serde::Deserialize)]
pub(crate) struct Answer {
    pub(crate) version: String,
    pub(crate) scores: Vec<Option<f32>>,
}

/// The columns of a model that is served, of the rows of a Parquet file, as JSON.
pub(crate) fn json_rows(server: &Server, path: &Path) -> Vec<Value> {
    let (model, rows) = (server.model(), common::read_file(path));
    let is_asked_for = |name: &str| model["columns"].as_array().unwrap().iter().any(|column| column == name);
    let schema = rows.schema();
    let columns = schema.fields().iter().zip(rows.columns());
    let asked: Vec<_> = columns.filter(|(field, _)| is_asked_for(field.name())).collect();
    let object = |row| asked.iter().map(|(field, column)| (field.name().clone(), value(column, row))).collect();
    (0..rows.num_rows()).map(object).collect()
}

fn value(column: &ArrayRef, row: usize) -> Value {
    if column.is_null(row) {
        return Value::Null;
    }
    match column.data_type() {
        DataType::Int32 => json!(column.as_primitive::<Int32Type>().value(row)),
        DataType::Int64 => json!(column.as_primitive::<Int64Type>().value(row)),
        DataType::UInt32 => json!(column.as_primitive::<UInt32Type>().value(row)),
        DataType::Float32 => json!(f64::from(column.as_primitive::<Float32Type>().value(row))),
        DataType::Float64 => json!(column.as_primitive::<Float64Type>().value(row)),
        DataType::Boolean => json!(column.as_boolean().value(row)),
        DataType::Utf8 => json!(column.as_string::<i32>().value(row)),
        DataType::Date32 => json!(column.as_primitive::<Date32Type>().value(row)),
        DataType::Timestamp(..) => json!(column.as_primitive::<TimestampNanosecondType>().value(row).div_euclid(1000)),
        DataType::List(_) => {
            let list = column.as_list::<i32>().value(row);
            (0..list.len()).map(|at| value(&list, at)).collect()
        }
        DataType::FixedSizeList(..) => {
            let list = column.as_fixed_size_list().value(row);
            (0..list.len()).map(|at| value(&list, at)).collect()
        }
        other => panic!("no JSON for {other}"),
    }
}
